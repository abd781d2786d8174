// One tensor as an artifact holds it: quantised, or kept as floats.
//
//   F32, F16        the values
//   I8, I6, I5      one integer an element and one f16 scale a row (ops/quantise.h): value = q * scale
//   I8 of one scale the same with one f32 scale for the whole tensor
//
// The source may have held the tensor in fewer bits than f32 (golf's embedding is bf16). That type is
// remembered, and what is read back is rounded to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/params.h"
#include "model/stored_weights.h"
#include "ops/quantise.h"
#include "tensor/tensor.h"

namespace thimble {

enum class Storage : std::uint8_t { f32, f16, int8, int6, int5, int8_whole };
inline constexpr int kStorages = 6;

std::string_view name_of(Storage storage);  // "F32", "I6"; "I8" for both kinds of int8
constexpr bool is_quantised(Storage storage) {
  return storage >= Storage::int8;
}

constexpr int bits_of(Storage storage) {  // of its integers
  return storage == Storage::int6 ? 6 : storage == Storage::int5 ? 5 : 8;
}

struct PackedTensor {
  Storage storage = Storage::f32;
  DType restored = DType::f32;  // f32, bf16 or f16
  std::vector<float> floats;    // F32, F16: the values, such as the storage can hold
  std::vector<std::int8_t> q;   // the others: one an element
  std::vector<float> scales;    // one a row, each an f16; or one in all

  bool operator==(const PackedTensor&) const = default;
};

// `rule` applies where the storage leaves a choice: its bits are the storage's. NaN and infinity are an Error
// that names the place, and so is a row too large for an f16 scale. F16 that cannot hold a value becomes F32.
PackedTensor pack_tensor(const Param& param, std::span<const float> values, Storage storage,
                         const QuantiseRule& rule, DType restored);

// Its values as they are read back, into param.count() floats.
void unpack_tensor(const Param& param, const PackedTensor& tensor, std::span<float> values);

// How many elements of each kind a tensor of that storage has.
std::int64_t scale_count(const Param& param, Storage storage);
std::int64_t scale_bytes(Storage storage);  // of one: 2, or 4 for the one scale of a whole tensor

// Before any compression, an integer counted as a byte whatever its bits.
std::int64_t payload_bytes(const Param& param, Storage storage);

// What packing did to the values.
struct PackingError {
  double rms = 0, largest = 0;
  double relative = 0;  // rms over the rms of the values; 0 if those are all 0
};
PackingError packing_error(std::span<const float> before, std::span<const float> after);

// Packed tensors as inference keeps them (model/stored_weights.h): integers stay integers.
//
// I8, I6 and I5 take a byte each, which is what kernels multiply. What the source rounded to bf16 or f16 is kept in that:
// the same values.
WeightFormat stored_format(const PackedTensor& tensor);

// Into its place, whatever format that has come to have.
void store_tensor(const Param& param, const PackedTensor& tensor, const StoredWeights::Stored& place);

// Packed tensors as bytes that compress well, one string of bytes for all layers of a kind of tensor.
//
// A group's bytes, each part for all its tensors in the order of layers:
//
//   1. the integers, one a byte
//   2. the f16 scales, then the f32 scales, then the F16 values, then the F32 values. Each of the four is
//      split into byte planes, the lowest bytes of all its numbers first: exponents next to exponents
//      compress, mantissas do not.
//
// Measured with zstd-22 on trained models (3.0 M weights, Muon): what comes out is within 1 % of the
// integers' own entropy. Bits packed tightly are 9 % (6 bits) to 16 % (5 bits) larger, because they cut
// symbols in two. Columns instead of rows change less than 0.1 % and hurt mlp.proj by 2 % at 5 bits; rows
// sorted by their size save 0.4 %, which the stored order costs again. So rows as they are. Byte planes save
// 8 % of F16 values and 13 % of F32.
//
// Names, not places in the params table, decide the order: the table may be laid out anew without making old
// files unreadable.
struct TensorGroup {
  std::string name;                  // "blocks.attn.c_q.weight"
  std::vector<std::size_t> tensors;  // places in the table, by layer
};

// All of them, by name. What a file says of every tensor it says in this order.
std::vector<TensorGroup> tensor_groups(const ParamTable& table);

// `tensors` is in the table's order, here and below.
std::uint64_t group_size(const ParamTable& table, const TensorGroup& group,
                         std::span<const PackedTensor> tensors);

std::vector<std::byte> group_bytes(const ParamTable& table, const TensorGroup& group,
                                   std::span<const PackedTensor> tensors);

// The stretches of it that hold one kind of byte each: the integers, then each plane of each section. They add up to
// group_size().
std::vector<std::uint64_t> plane_sizes(const ParamTable& table, const TensorGroup& group,
                                       std::span<const PackedTensor> tensors);

// Fills the group's tensors, of which storage and restored are known. The bytes are group_size() many. Scales
// and values that are not finite are an Error.
void read_group(const ParamTable& table, const TensorGroup& group, std::span<const std::byte> bytes,
                std::span<PackedTensor> tensors);

}  // namespace thimble
