// Storage types of GGUF tensors. Block types match ggml's reference quantizers bit for bit.
//
//   F32   4 bytes
//   F16   IEEE half, rounded to nearest even
//   BF16  the upper half of an f32, rounded to nearest even; subnormal results keep their bits
//   Q8_0  32 numbers in 34 bytes: f16 d = max|x| / 127, then q = round(x / d) as i8, halves away
//         from zero
//   Q4_0  32 numbers in 18 bytes: f16 d = m / -8 where m is the x of largest magnitude, with its
//         sign; then q = min(15, floor(x / d + 8.5)), number i in the low half of byte i, number
//         i + 16 in the high half; the value is d (q - 8)
//
// In both block types, q is computed with d before d is rounded to f16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace thimble {

enum class GgufType : std::uint32_t { f32 = 0, f16 = 1, q4_0 = 2, q8_0 = 8, bf16 = 30 };

inline constexpr std::int64_t kGgufBlock = 32;  // numbers in a block of Q8_0 and Q4_0

struct GgufTypeInfo {
  GgufType type;
  std::string_view name;      // "Q8_0"
  std::string_view option;    // "q8_0": the value of --type
  std::uint32_t file_type;    // general.file_type of a file whose matrices have this type
  std::int64_t block, bytes;  // numbers and bytes per block
};

const GgufTypeInfo& info_of(GgufType type);
const GgufTypeInfo* find_gguf_type(std::uint32_t id);           // nullptr if unsupported
std::optional<GgufType> gguf_type_of(std::string_view option);  // "q8_0"
std::string_view gguf_type_name(std::uint32_t id);              // also of unsupported types; "" if unknown

bool fits_blocks(GgufType type, std::int64_t row_length);

// Row-major values. Sizes must match each other and be a multiple of the block size.
void encode_gguf(GgufType type, std::span<const float> values, std::span<std::byte> bytes);
void decode_gguf(GgufType type, std::span<const std::byte> bytes, std::span<float> values);
std::uint64_t gguf_bytes(GgufType type, std::int64_t count);

// The contents of Q8_0 and Q4_0: integers, and one scale for each kGgufBlock of them.
// value = integer * scale
struct GgufBlocks {
  std::vector<float> integers, scales;
};
constexpr bool has_blocks(GgufType type) {
  return type == GgufType::q8_0 || type == GgufType::q4_0;
}
GgufBlocks gguf_blocks(GgufType type, std::span<const std::byte> bytes);

DType float_dtype(GgufType type);  // f32, bf16 or f16; throws an Error for block types

}  // namespace thimble
