// All weights of a model, packed: pruned, quantised, coded.
//
//   std::vector<PackedTensor> tensors = pack_weights(table, weights, restored, options).tensors;
//   std::vector<CodedGroup> groups = code_weights(table, tensors, options.codec, work);
//
// How a tensor is stored (parameter-golf 1.8 and 2.8):
//
//   8 bits     more than 65,536 elements: I8, a scale a row for matrices, one scale for the rest
//   6, 5 bits  matrices of more than 8,192 elements: I6 or I5; but the token embedding F16, an untied head
//              and learned positions I8, for what they lose costs most
//   the rest   control tensors F32, others F16
//
// With a rule of their own, the token embedding and an untied head are I8, I6 or I5 by that. With GPTQ (gptq.h) the
// rules say what a row's scale is, and what a matrix was seen to be multiplied with how it is rounded.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/signals.h"
#include "pack/codec.h"
#include "pack/packed_tensor.h"

namespace thimble {

class GptqFactors;

struct PackOptions {
  QuantiseRule rule;
  std::optional<QuantiseRule> embedding = {};  // a rule of its own for the token embedding and an untied head
  const GptqFactors* gptq = nullptr;   // outlives the options; nullptr: every weight is rounded by itself
  double prune = 0;                    // the smallest weights of every matrix that is not kept for its size
  std::vector<std::string> keep = {};  // tensors with one of these in their name stay F16
  Codec codec = Codec::zstd;
};

// As a preset's pack_* keys say; what they leave open is 8 bits by the published rule, or for GPTQ (whose factors are
// for the caller to find) 6 bits clipped at 12.85 deviations and the embedding 8 bits clipped at 20 (parameter-golf 2.12).
PackOptions pack_options(const PackConfig& preset);

// "int8_clean_per_row_v1", "int6_per_row", "int6_clip_search", "int6_clip_12.85_deviations"
std::string rule_name(const QuantiseRule& rule);

// Of all that decides how weights are rounded: "int6_clip_12.85_deviations, embedding int8_clip_20_deviations, gptq".
std::string packing_name(const PackOptions& options);

Storage storage_of(const Param& param, const PackOptions& options);

struct PackedWeights {
  std::vector<PackedTensor> tensors;  // in the table's order
  std::int64_t pruned = 0;            // weights that became zero
};

// `restored`: what the source held each tensor in. `before`: the same weights as the source's own artifact
// holds them, by the same rule; a tensor that pruning leaves as it is is not quantised a second time, so that
// packing an artifact again changes nothing. Empty: there is none.
PackedWeights pack_weights(const ParamTable& table, std::span<const float> weights,
                           std::span<const DType> restored, const PackOptions& options,
                           std::span<const PackedTensor> before = {},
                           const ProgressOutput& progress = ProgressOutput::nowhere(),
                           const Interrupt* interrupt = nullptr);

// The same for what is packed already: the smallest weights of every such matrix become zero, all others stay as they are.
PackedWeights prune_packed(const ParamTable& table, std::vector<PackedTensor> tensors, double fraction);

// The block of floats that comes back.
std::vector<float> unpack_weights(const ParamTable& table, std::span<const PackedTensor> tensors);

struct CodedGroup {
  std::string name;
  Codec codec = Codec::zstd;
  std::uint64_t raw_bytes = 0;
  std::vector<std::byte> bytes;
};
std::uint64_t coded_bytes(std::span<const CodedGroup> groups);

// How many bytes of how many are coded; may throw to stop. Never called by two threads at a time.
using OnCoded = std::function<void(std::uint64_t done, std::uint64_t total)>;

std::vector<CodedGroup> code_weights(const ParamTable& table, std::span<const PackedTensor> tensors,
                                     Codec codec, const OnCoded& on_coded = {});

// How many bytes packed weights will take, without compressing them all.
//
// A compressor that knows nothing but how often each byte occurs needs its entropy, and on trained weights zstd comes out
// within about 1 % of it, block by block (packed_tensor.h). Counting is some hundred times as fast as zstd-22, which makes
// it possible to look for a rule that fits. Our range coder comes out 0 to 13 % below the entropy of a group's integers; by
// how much, some rows tell that are coded.
//
// What GPTQ will round to spreads wider than weights rounded one by one. So some rows are solved, and stand for the rest.
// Of the coded groups alone: what coded_bytes() will say.
std::uint64_t predicted_bytes(const ParamTable& table, std::span<const PackedTensor> tensors, Codec codec);

struct PackEstimate {
  std::uint64_t bytes = 0;  // of the coded groups
  double error = 0;  // rms of what the quantised matrices lose, over the rms of their weights; 0: nothing
};

// Before packing, from the weights. The error is that of weights rounded one by one, whatever the options say.
PackEstimate estimate_packing(const ParamTable& table, std::span<const float> weights,
                              std::span<const DType> restored, const PackOptions& options,
                              const Interrupt* interrupt = nullptr);

}  // namespace thimble
