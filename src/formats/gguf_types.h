// Storage types of GGUF tensors. Values are decoded bit for bit as ggml does it.
//
//   F32   4 bytes
//   F16   IEEE half, rounded to nearest even
//   BF16  the upper half of an f32, rounded to nearest even; subnormal results keep their bits
//
// All other types store blocks of 32 or 256 numbers (gguf_blocks.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace thimble {

enum class GgufType : std::uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  iq4_nl = 20,
  iq4_xs = 23,
  bf16 = 30,
};

struct GgufTypeInfo {
  GgufType type;
  std::string_view name;      // "Q8_0"
  std::string_view option;    // "q8_0": the value of --type; empty if no export has it
  std::uint32_t file_type;    // general.file_type of a file whose matrices have this type
  std::int64_t block, bytes;  // numbers and bytes per block
};

const GgufTypeInfo& info_of(GgufType type);
const GgufTypeInfo* find_gguf_type(std::uint32_t id);           // nullptr if unsupported
std::optional<GgufType> gguf_type_of(std::string_view option);  // "q8_0"
std::string_view gguf_type_name(std::uint32_t id);              // also of unsupported types; "" if unknown
std::string gguf_types_text();                                  // "F32, F16, ... or IQ4_XS", for messages

// The name of an export in this type: "Q8_0", or "Q4_K_M" for a mix of Q4_K and wider types.
std::string gguf_export_name(GgufType type);

bool fits_blocks(GgufType type, std::int64_t row_length);
// The type that llama.cpp uses for rows that do not fit the blocks of `type`: `type` itself if they
// fit, else Q5_0 for Q4_K, Q5_1 for Q5_K, Q8_0 for Q6_K, or F16.
GgufType fitting_type(GgufType type, std::int64_t row_length);

// Row-major values. Sizes must match each other and be a multiple of the block size. Throws an
// Error if the type cannot represent the values, or if thimble only reads it.
void encode_gguf(GgufType type, std::span<const float> values, std::span<std::byte> bytes);
void decode_gguf(GgufType type, std::span<const std::byte> bytes, std::span<float> values);
std::uint64_t gguf_bytes(GgufType type, std::int64_t count);

// The contents of the types whose values are an 8-bit integer times the scale of 32 numbers.
struct GgufIntegers {
  std::vector<float> integers, scales;
};
bool is_scaled_int8(GgufType type);
GgufIntegers gguf_integers(GgufType type, std::span<const std::byte> bytes);

DType float_dtype(GgufType type);  // f32, bf16 or f16; throws an Error for block types

}  // namespace thimble
