#include "model/params.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "model/param_roles.h"

namespace thimble {

namespace {

constexpr std::int64_t kAlignedElements = 16;  // 64 bytes

std::int64_t aligned(std::int64_t elements) {
  return (elements + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
}

const RoleRow& facts_of(Role role) {
  return all_roles()[static_cast<std::size_t>(role)];
}

std::string name_of(const RoleRow& row, bool transformers, int layer) {
  return fmt::format(fmt::runtime(transformers ? row.transformers_name : row.golf_name), layer);
}

}  // namespace

bool uses_transformers_names(const ModelConfig& config) {
  const auto roles = all_roles();
  return std::none_of(roles.begin(), roles.end(), [&](const RoleRow& row) {
    return row.transformers_name.empty() && dims_of(config, row.role).has_value();
  });
}

ParamTable::ParamTable(const ModelConfig& config) {
  validate(config);  // sizes are bounded from here on
  const auto rows = all_roles();
  for (std::size_t begin = 0, end; begin < rows.size(); begin = end) {
    std::vector<Role> group = {rows[begin].role};
    for (end = begin + 1; end < rows.size() && rows[end].joined; ++end) group.push_back(rows[end].role);
    if (dims_of(config, group.front())) lay_out(config, group);
  }
  for (std::size_t i = 0; i < params_.size(); ++i) by_name_.emplace(params_[i].name, i);
}

void ParamTable::lay_out(const ModelConfig& config, std::span<const Role> group) {
  std::int64_t size = 0;
  for (Role role : group) {
    const std::vector<std::int64_t> dims = dims_of(config, role).value();
    const std::int64_t rows = dims.size() == 2 ? dims[0] : 1, cols = dims.empty() ? 1 : dims.back();
    slots_[static_cast<std::size_t>(role)] = {block_size_ + size, rows, cols, 0};
    size += rows * cols;
  }
  const bool in_block = facts_of(group.front()).in_block(), transformers = uses_transformers_names(config);
  const auto layers = static_cast<int>(in_block ? config.layers : 1);
  for (int layer = 0; layer < layers; ++layer)
    for (Role role : group) {
      const RoleRow& row = facts_of(role);
      Slot& slot = slots_[static_cast<std::size_t>(role)];
      slot.stride = aligned(size);
      params_.push_back({.name = name_of(row, transformers, layer),
                         .dims = dims_of(config, role).value(),
                         .rows = slot.rows,
                         .cols = slot.cols,
                         .role = role,
                         .layer = in_block ? layer : -1,
                         .init = init_of(config, role, slot.rows, slot.cols),
                         .group = row.group,
                         .decays = row.decays,
                         .control = row.control,
                         .offset = slot.offset + layer * slot.stride});
      count_ += params_.back().count();
      group_counts_[static_cast<std::size_t>(row.group)] += params_.back().count();
    }
  block_size_ += layers * aligned(size);
}

const Param* ParamTable::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &params_[found->second];
}

ParamView ParamTable::view(Role role, int layer) const {
  const Slot& slot = this->slot(role);
  return slot.rows == 0 ? ParamView{} : ParamView{slot.offset + layer * slot.stride, slot.rows, slot.cols};
}

ParamView ParamTable::joined(std::span<const Role> roles, int layer) const {
  ParamView whole = view(roles.front(), layer);
  if (!whole) return {};
  const bool vectors = facts_of(roles.front()).group == ParamGroup::scalar;  // a matrix may have one row, too
  for (Role role : roles.subspan(1)) {
    const ParamView part = view(role, layer);
    (vectors ? whole.cols : whole.rows) += vectors ? part.cols : part.rows;
  }
  return whole;
}

ParamView ParamTable::head() const {
  const ParamView own = view(Role::head);
  return own ? own : token_embedding();
}

ParamView ParamTable::mlp_in(int layer) const {
  const ParamView fc = view(Role::mlp_fc, layer);
  return fc ? fc : joined({Role::mlp_gate, Role::mlp_up}, layer);
}

ParamView ParamTable::mlp_in_bias(int layer) const {
  const ParamView fc = view(Role::mlp_fc_bias, layer);
  return fc ? fc : joined({Role::mlp_gate_bias, Role::mlp_up_bias}, layer);
}

ParamView ParamTable::row_of(Role role, int row) const {
  const ParamView all = view(role);
  if (!all) return {};
  return {all.offset + row * all.cols, 1, all.cols};
}

}  // namespace thimble
