// One tensor as stored in an artifact: quantized, or kept as floats.
//
//   F32, F16              the values
//   I8, I6, I5            one integer per element and one f16 scale per row (ops/quantize.h):
//                         value = q * scale
//   I8 with single scale  one integer per element and one f32 scale for the tensor
//
// The source may store the tensor in fewer bits than f32 (golf's embedding is bf16). That type is
// recorded, and values are rounded to it when they are read back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/params.h"
#include "model/stored_weights.h"
#include "ops/quantize.h"
#include "tensor/tensor.h"

namespace thimble {

enum class Storage : std::uint8_t { f32, f16, int8, int6, int5, int8_whole };
inline constexpr int kStorages = 6;

std::string_view name_of(Storage storage);  // "F32", "I6"; "I8" for both kinds of int8
constexpr bool is_quantized(Storage storage) {
  return storage >= Storage::int8;
}

constexpr int bits_of(Storage storage) {  // bits per integer
  return storage == Storage::int6 ? 6 : storage == Storage::int5 ? 5 : 8;
}

struct PackedTensor {
  Storage storage = Storage::f32;
  DType restored = DType::f32;  // f32, bf16 or f16
  std::vector<float> floats;    // F32, F16: the values, exact in that storage
  std::vector<std::int8_t> q;   // other storages: one per element
  std::vector<float> scales;    // one per row, rounded to f16; int8_whole: one

  bool operator==(const PackedTensor&) const = default;
};

// The bits come from `storage`, the clipping from `rule`. Throws an Error that names the position
// for NaN and infinity, and for a row too large for an f16 scale. F16 becomes F32 if a value does
// not fit.
PackedTensor pack_tensor(const Param& param, std::span<const float> values, Storage storage,
                         const QuantizeRule& rule, DType restored);

// Writes param.count() values as they will be read back.
void unpack_tensor(const Param& param, const PackedTensor& tensor, std::span<float> values);

// Number of scales of a tensor with this storage.
std::int64_t scale_count(const Param& param, Storage storage);
std::int64_t scale_bytes(Storage storage);  // per scale: 2, or 4 for int8_whole

// Bytes before compression. Every integer counts as one byte, whatever its bits.
std::int64_t payload_bytes(const Param& param, Storage storage);

// The error that packing introduced.
struct PackingError {
  double rms = 0, largest = 0;
  double relative = 0;  // rms over the rms of the values; 0 if those are all 0
};
PackingError packing_error(std::span<const float> before, std::span<const float> after);

// Converts packed tensors to the weights used for inference (model/stored_weights.h). I8, I6 and I5
// use one byte each, which is what the kernels multiply. Tensors restored to bf16 or f16 are stored
// in that type, without loss.
WeightFormat stored_format(const PackedTensor& tensor);

// Writes the tensor to `target`, in the format that `target` has.
void store_tensor(const Param& param, const PackedTensor& tensor, const StoredWeights::Stored& target);

// Serializes packed tensors in a form that compresses well: one string of bytes per group, which is
// one kind of tensor in all layers.
//
// A group's bytes, where each part covers all tensors in the order of layers:
//
//   1. the integers, one per byte
//   2. the f16 scales, then the f32 scales, then the F16 values, then the F32 values. Each of the
//      four is split into byte planes, starting with the lowest bytes of all numbers: planes of
//      exponents compress, mantissas do not.
//
// Measured with zstd-22 on trained models (3.0 M weights, Muon): the result is within 1 % of the
// entropy of the integers. Tightly packed bits are 9 % (6 bits) to 16 % (5 bits) larger, because
// they split symbols. Storing integers by column changes the size by less than 0.1 %, but costs 2 %
// on mlp.proj at 5 bits. Sorting rows by size saves 0.4 %, but storing the permutation costs as
// much, so rows are stored in order. Byte planes save 8 % of F16 values and 13 % of F32.
//
// The order depends on names, not on indices in the ParamTable, so that files stay readable if the
// table's layout changes.
struct TensorGroup {
  std::string name;                  // "blocks.attn.c_q.weight"
  std::vector<std::size_t> tensors;  // indices in the table, by layer
};

// All groups, sorted by name. Per-tensor metadata of a file has the same order.
std::vector<TensorGroup> tensor_groups(const ParamTable& table);

// `tensors` is in the order of the table, here and below.
std::uint64_t group_size(const ParamTable& table, const TensorGroup& group,
                         std::span<const PackedTensor> tensors);

std::vector<std::byte> group_bytes(const ParamTable& table, const TensorGroup& group,
                                   std::span<const PackedTensor> tensors);

// Sizes of the sections with one kind of byte: the integers, then each byte plane. They add up to
// group_size().
std::vector<std::uint64_t> plane_sizes(const ParamTable& table, const TensorGroup& group,
                                       std::span<const PackedTensor> tensors);

// Fills the group's tensors, whose storage and restored must be set. `bytes` must have group_size()
// bytes. Throws an Error for non-finite scales and values.
void read_group(const ParamTable& table, const TensorGroup& group, std::span<const std::byte> bytes,
                std::span<PackedTensor> tensors);

}  // namespace thimble
