// Packs all weights of a model: prunes, quantizes and codes them.
//
//   std::vector<PackedTensor> tensors = pack_weights(table, weights, restored, options).tensors;
//   std::vector<CodedGroup> groups = code_weights(table, tensors, options.codec, work);
//
// Every matrix is stored as I8, I6 or I5 with a scale per row, unless its rows are so short that
// the scales would take more than they save. Control tensors are F32, other vectors F16.
//
// Golf models are stored as parameter-golf's scripts store them:
//
//   8 bits     tensors of more than 65,536 elements: I8, with a scale per row for matrices and one
//              scale for other tensors
//   6, 5 bits  matrices of more than 8,192 elements: I6 or I5. Exceptions, where errors cost the
//              most: the token embedding is F16, an untied head and learned positions are I8
//   smaller    control tensors F32, others F16
//
// A role (PackRole below) may have a rule of its own. With GPTQ (gptq.h) the rules determine the
// scale of each row, and the calibration data determines how weights are rounded.
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

// A number of bits that weights can be packed with, and how far rows are clipped by default, in
// standard deviations. The clip belongs to the bits: it sets the size of a step, which determines
// the error and, after compression, the size. More bits only extend the range of the steps.
struct BitWidth {
  int bits;
  Storage storage;
  float clip;            // of matrices
  float gptq_clip;       // of matrices with GPTQ, which loses less with coarser steps
  float embedding_clip;  // of the embedding and head, where errors cost more
};
inline constexpr BitWidth kBitWidths[] = {
    {8, Storage::int8, 12, 16, 20},
    {6, Storage::int6, 9, 12.85f, 8},
    {5, Storage::int5, 6, 6.5f, 5},
};
const BitWidth& bit_width(int bits);  // throws Error if there is no such row

// The roles whose matrices may have rules of their own.
enum class PackRole : std::uint8_t { attention, mlp, embedding };  // attention: and all others
inline constexpr int kPackRoles = 3;

struct PackOptions {
  QuantizeRule rule;
  std::optional<QuantizeRule> embedding = {};  // for the token embedding and an untied head
  std::optional<QuantizeRule> mlp = {};        // for the matrices of the MLPs
  const GptqFactors* gptq = nullptr;           // must outlive the options; nullptr: round to nearest
  double prune = 0;  // fraction of smallest weights to zero, in every matrix that is not small
  std::vector<std::string> keep = {};  // tensors whose name contains one of these stay F16
  Codec codec = Codec::zstd;
  bool golf = true;  // store tensors as parameter-golf's scripts do (see above)
};

PackRole role_of(const Param& param, const PackOptions& options);

// Options from the pack_* keys of a preset and these defaults:
//
//   golf models   8 bits by the published rule; with GPTQ 6 bits and an embedding of 8 bits
//   all others    6 bits and an embedding of 8 bits, coded with the range coder
//
// Clips are those of kBitWidths. A model that was trained with `qat_bits` is packed by the rule
// that it was trained with: that many bits and the standard clip. The caller sets GPTQ's factors.
PackOptions pack_options(const PackConfig& preset, bool golf, std::int64_t qat_bits = 0);

// "int8_clean_per_row_v1", "int6_per_row", "int6_clip_search", "int6_clip_12.85_deviations"
std::string rule_name(const QuantizeRule& rule);

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

}  // namespace thimble
