// What the params table knows about each role: its names, its group, its shape and its init.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "model/params.h"

namespace thimble {

struct RoleRow {
  Role role;
  std::string_view golf_name;          // {} is the layer
  std::string_view transformers_name;  // empty: no such tensor in the llama family
  ParamGroup group = ParamGroup::scalar;
  bool joined = false;  // stored right behind the role before it
  bool decays = true;
  bool control = true;

  bool in_block() const { return golf_name.find("{}") != golf_name.npos; }
};

std::span<const RoleRow> all_roles();  // in the order of the enum

// Dimensions in files; nullopt: the model does not have it.
std::optional<std::vector<std::int64_t>> dims_of(const ModelConfig& config, Role role);

Init init_of(const ModelConfig& config, Role role, std::int64_t rows, std::int64_t cols);

}  // namespace thimble
