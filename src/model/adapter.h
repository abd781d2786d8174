// Low-rank adapters (LoRA). The weights of a model stay as they are stored, and training changes a
// pair of f32 matrices beside each linear layer that has an adapter:
//
//   y = x w^T + scale (x a^T) b^T      a [R, I]   NAME.lora_A.weight
//                                      b [O, R]   NAME.lora_B.weight, starts at 0
//
// NAME.weight is the name of w in the model's ParamTable, so in models with Transformers' names
// these are the names of PEFT. The matrices of a group (q;k;v or gate;up) are consecutive, a first:
// a group is two products and one low_rank (ops/low_rank.h).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "config/config.h"
#include "model/params.h"

namespace thimble {

// The adapters of one matrix of the forward pass.
struct MatrixAdapter {
  ParamView a, b;                           // [A R, I] and [O', R] for A adapted parts with O' rows
  std::array<std::int32_t, 3> widths = {};  // rows of the parts of the group; 0: no such part
  std::uint32_t adapted = 0;                // bit p: part p has an adapter
};

// A rank above the sides of a matrix gains nothing, but the sum of several adapters may have one.
enum class RankLimit : std::uint8_t { matrix, none };

class AdapterTable {
 public:
  // `model` must be resolved. Throws Error if no matrix has an adapter, or for a rank above the
  // limit.
  AdapterTable(const ModelConfig& model, const LoraConfig& lora, RankLimit limit = RankLimit::matrix);

  const LoraConfig& lora() const { return lora_; }
  const ParamTable& params() const { return params_; }
  // The adapters of a matrix, given by its view in the model's table; nullptr: it has none.
  const MatrixAdapter* of(const ParamView& matrix) const;

 private:
  LoraConfig lora_;
  std::map<std::int64_t, MatrixAdapter> adapters_;  // by the offset of the matrix
  ParamTable params_;
};

// The kind of a linear layer of a block; nullopt for all other parameters.
std::optional<LoraTarget> target_of(Role role);

// "model.layers.0.mlp.up_proj.weight" -> "model.layers.0.mlp.up_proj"
std::string matrix_stem(std::string_view name);

// The parameters that a run trains: the adapters if the config has any, else all of the model.
ParamTable trained_params(const Config& config);

// Adds scale b a of every adapter to the matrices of `weights`, which are laid out by the model's
// table.
void merge_adapters(const ParamTable& model, const AdapterTable& table, std::span<const float> adapters,
                    std::span<float> weights);

}  // namespace thimble
