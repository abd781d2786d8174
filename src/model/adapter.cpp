#include "model/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"

namespace thimble {

std::optional<LoraTarget> target_of(Role role) {
  switch (role) {
    case Role::query:
      return LoraTarget::q;
    case Role::key:
      return LoraTarget::k;
    case Role::value:
      return LoraTarget::v;
    case Role::attn_proj:
      return LoraTarget::o;
    case Role::mlp_gate:
      return LoraTarget::gate;
    case Role::mlp_fc:
    case Role::mlp_up:
      return LoraTarget::up;
    case Role::mlp_proj:
      return LoraTarget::down;
    default:
      return std::nullopt;
  }
}

std::string matrix_stem(std::string_view name) {
  return std::string(name.substr(0, name.rfind(".weight")));
}

namespace {

// "model.layers.0.mlp.up_proj.weight" -> "model.layers.0.mlp.up_proj.lora_A.weight"
std::string adapter_name(const std::string& weight, char which) {
  return fmt::format("{}.lora_{}.weight", matrix_stem(weight), which);
}

// The adapters of one layer's group of matrices, laid out from `offset`.
class Group {
 public:
  Group(const LoraConfig& lora, RankLimit limit, std::span<const Param* const> matrices)
      : rank_(lora.rank), limit_(limit) {
    for (std::size_t part = 0; part < matrices.size(); ++part) {
      adapter_.widths[part] = static_cast<std::int32_t>(matrices[part]->rows);
      if (!lora.targets.contains(target_of(matrices[part]->role).value())) continue;
      adapter_.adapted |= 1u << part;
      adapted_.push_back(matrices[part]);
    }
  }

  bool empty() const { return adapted_.empty(); }

  MatrixAdapter lay_out(std::int64_t& end, std::vector<Param>& params) const {
    MatrixAdapter adapter = adapter_;
    adapter.a.offset = end;
    for (const Param* matrix : adapted_) add(*matrix, 'A', end, adapter.a, params);
    adapter.b.offset = end = aligned(end);
    for (const Param* matrix : adapted_) add(*matrix, 'B', end, adapter.b, params);
    end = aligned(end);
    return adapter;
  }

 private:
  void add(const Param& matrix, char which, std::int64_t& end, ParamView& view,
           std::vector<Param>& params) const {
    check(limit_ == RankLimit::none || rank_ <= std::min(matrix.rows, matrix.cols),
          Hint{"lower lora_rank, or leave out the layer in lora_targets"},
          "lora_rank is {}, but {} is only {} x {}", rank_, matrix.name, matrix.rows, matrix.cols);
    const bool first = which == 'A';
    const std::int64_t rows = first ? rank_ : matrix.rows, cols = first ? matrix.cols : rank_;
    const Init init = first ? Init{Init::Kind::uniform, 1 / std::sqrt(static_cast<double>(cols))} : Init{};
    params.push_back({.name = adapter_name(matrix.name, which),
                      .dims = {rows, cols},
                      .rows = rows,
                      .cols = cols,
                      .role = matrix.role,
                      .layer = matrix.layer,
                      .init = init,
                      .group = ParamGroup::matrix,
                      .decays = true,
                      .control = false,
                      .offset = end});
    view.rows += rows;
    view.cols = cols;
    end += rows * cols;
  }

  std::int64_t rank_;
  RankLimit limit_;
  MatrixAdapter adapter_;
  std::vector<const Param*> adapted_;
};

ParamTable lay_out(const ModelConfig& model, const LoraConfig& lora, RankLimit limit,
                   std::map<std::int64_t, MatrixAdapter>& adapters) {
  const ParamTable table(model);
  std::vector<Param> params;
  std::int64_t end = 0;
  std::vector<const Param*> group;
  const auto close_group = [&] {
    const Group matrices(lora, limit, group);
    if (!matrices.empty()) adapters.emplace(group.front()->offset, matrices.lay_out(end, params));
    group.clear();
  };
  for (const Param& param : table.all()) {
    if (!target_of(param.role)) continue;
    const bool joins = all_roles()[static_cast<std::size_t>(param.role)].joined;
    if (!joins && !group.empty()) close_group();
    group.push_back(&param);
  }
  close_group();
  check(!params.empty(), Hint{"the default of lora_targets is all linear layers of the blocks"},
        "no layer of this model is in lora_targets");
  return ParamTable(std::move(params));
}

}  // namespace

AdapterTable::AdapterTable(const ModelConfig& model, const LoraConfig& lora, RankLimit limit)
    : lora_(lora), params_(lay_out(model, lora, limit, adapters_)) {}

const MatrixAdapter* AdapterTable::of(const ParamView& matrix) const {
  const auto found = adapters_.find(matrix.offset);
  return found == adapters_.end() ? nullptr : &found->second;
}

ParamTable trained_params(const Config& config) {
  return config.lora ? AdapterTable(config.model, config.lora).params() : ParamTable(config.model);
}

void merge_adapters(const ParamTable& model, const AdapterTable& table, std::span<const float> adapters,
                    std::span<float> weights) {
  const auto scale = static_cast<float>(table.lora().scale());
  for (const Param& param : model.all()) {
    const Param* const a = table.params().find(adapter_name(param.name, 'A'));
    const Param* const b = table.params().find(adapter_name(param.name, 'B'));
    if (!a || !b) continue;
    const std::span<const float> first = a->in(adapters), second = b->in(adapters);
    const std::span<float> matrix = param.in(weights);
    parallel_for(param.rows, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t o = begin; o < end; ++o) {
        float* const row = matrix.data() + o * param.cols;
        for (std::int64_t r = 0; r < a->rows; ++r) {
          const float factor = scale * second[static_cast<std::size_t>(o * b->cols + r)];
          const float* const from = first.data() + r * a->cols;
          for (std::int64_t i = 0; i < param.cols; ++i) row[i] += factor * from[i];
        }
      }
    });
  }
}

}  // namespace thimble
