// Packs all weights of a model: prunes, quantizes and codes them.
//
//   std::vector<PackedTensor> tensors = pack_weights(table, weights, restored, options).tensors;
//   std::vector<CodedGroup> groups = code_weights(table, tensors, options.codec, work);
//
// How tensors are stored:
//
//   8 bits     tensors of more than 65,536 elements: I8, with a scale per row for matrices and one
//              scale for other tensors
//   6, 5 bits  matrices of more than 8,192 elements: I6 or I5. Exceptions, where errors cost the
//              most: the token embedding is F16, an untied head and learned positions are I8
//   smaller    control tensors F32, others F16
//
// PackOptions::embedding sets a separate rule for the token embedding and an untied head: I8, I6 or
// I5. With GPTQ (gptq.h) the rules determine the scale of each row, and the calibration data
// determines how weights are rounded.
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
  std::optional<QuantiseRule> embedding = {};  // for the token embedding and an untied head
  const GptqFactors* gptq = nullptr;           // must outlive the options; nullptr: round to nearest
  double prune = 0;  // fraction of smallest weights to zero, in every matrix that is not small
  std::vector<std::string> keep = {};  // tensors whose name contains one of these stay F16
  Codec codec = Codec::zstd;
};

// Options from a preset's pack_* keys. Defaults are 8 bits by the published rule. With GPTQ, whose
// factors the caller sets, they are 6 bits clipped at 12.85 deviations, and for the embedding 8
// bits clipped at 20 deviations.
PackOptions pack_options(const PackConfig& preset);

// "int8_clean_per_row_v1", "int6_per_row", "int6_clip_search", "int6_clip_12.85_deviations"
std::string rule_name(const QuantiseRule& rule);

// The name of all options that affect rounding, for example
// "int6_clip_12.85_deviations, embedding int8_clip_20_deviations, gptq".
std::string packing_name(const PackOptions& options);

Storage storage_of(const Param& param, const PackOptions& options);

struct PackedWeights {
  std::vector<PackedTensor> tensors;  // in the order of the table
  std::int64_t pruned = 0;            // weights set to zero
};

// `restored`: the type of each tensor in the source. `before`: the tensors of the source artifact
// if it was packed by the same rule, else empty. A tensor that pruning does not change is copied
// from `before` instead of being quantized again, so packing an artifact again changes nothing.
PackedWeights pack_weights(const ParamTable& table, std::span<const float> weights,
                           std::span<const DType> restored, const PackOptions& options,
                           std::span<const PackedTensor> before = {},
                           const ProgressOutput& progress = ProgressOutput::nowhere(),
                           const Interrupt* interrupt = nullptr);

// Prunes packed tensors: zeroes the smallest weights of every matrix that is not small, and leaves
// all others unchanged.
PackedWeights prune_packed(const ParamTable& table, std::vector<PackedTensor> tensors, double fraction);

// Returns the block of floats that a reader of the artifact gets.
std::vector<float> unpack_weights(const ParamTable& table, std::span<const PackedTensor> tensors);

struct CodedGroup {
  std::string name;
  Codec codec = Codec::zstd;
  std::uint64_t raw_bytes = 0;
  std::vector<std::byte> bytes;
};
std::uint64_t coded_bytes(std::span<const CodedGroup> groups);

// Called with the number of bytes coded and the total; may throw to stop. Never called
// concurrently.
using OnCoded = std::function<void(std::uint64_t done, std::uint64_t total)>;

std::vector<CodedGroup> code_weights(const ParamTable& table, std::span<const PackedTensor> tensors,
                                     Codec codec, const OnCoded& on_coded = {});

// Predicts how many bytes packed weights will take, without compressing all of them.
//
// The prediction is the entropy of the bytes. On trained weights, zstd comes within about 1 % of
// it, block by block (packed_tensor.h). Counting is about a hundred times as fast as zstd-22, which
// makes it possible to search for a rule that fits. The range coder is 0 to 13 % below the entropy
// of a group's integers; the ratio is estimated by coding a sample of rows.
//
// GPTQ's codes have a wider distribution than weights rounded to nearest, so GPTQ is run on a
// sample of rows. The prediction covers only the coded groups, like coded_bytes().
std::uint64_t predicted_bytes(const ParamTable& table, std::span<const PackedTensor> tensors, Codec codec);

struct PackEstimate {
  std::uint64_t bytes = 0;  // of the coded groups
  double error = 0;         // rms error of the quantized matrices / rms of their weights
};

// The same before packing, from float weights. The error is always that of rounding to nearest,
// even with GPTQ.
PackEstimate estimate_packing(const ParamTable& table, std::span<const float> weights,
                              std::span<const DType> restored, const PackOptions& options,
                              const Interrupt* interrupt = nullptr);

}  // namespace thimble
