// Storage types of GGUF tensors. Values are decoded bit for bit as ggml does it.
//
//   F32   4 bytes
//   F16   IEEE half, rounded to nearest even
//   BF16  the upper half of an f32, rounded to nearest even; subnormal results keep their bits
//
// All other types store blocks of 32 or 256 numbers (tensor/block_rows.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/block_rows.h"
#include "tensor/tensor.h"

namespace thimble {

struct GgufTypeInfo {
  GgufType type;
  std::string_view name;      // "Q8_0"
  std::string_view option;    // "q8_0": the value of --type; empty if no export has it
  std::uint32_t file_type;    // general.file_type of a file whose matrices have this type
  std::int64_t block, bytes;  // numbers and bytes per block
};

constexpr GgufTypeInfo gguf_info(GgufType type, std::string_view name, std::string_view option,
                                 std::uint32_t file_type) {
  return {type, name, option, file_type, block_size(type).numbers, block_size(type).bytes};
}

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

DType float_dtype(GgufType type);  // f32, bf16 or f16; throws an Error for block types

}  // namespace thimble
