// One tensor as an artifact holds it: quantised, or kept as floats.
//
//   F32, F16        the values
//   I8, I6, I5      one integer an element and one f16 scale a row (ops/quantise.h): value = q * scale
//   I8 of one scale the same with one f32 scale for the whole tensor
//
// The source may have held the tensor in fewer bits than f32 (golf's embedding is bf16). That type is
// remembered, and what is read back is rounded to it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/params.h"
#include "ops/quantise.h"
#include "tensor/dtype.h"

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

}  // namespace thimble
