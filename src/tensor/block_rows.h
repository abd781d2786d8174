// Matrices that stay in the blocks of a GGUF file, usually in its mapped memory.
//
// A Tensor of DType::blocks points to a BlockMatrix and has no bytes of its own. The rows of the
// matrix are those of one or more tensors of the file, such as q, k and v, which may have different
// types. linear, embedding and head_loss decode rows when they use them.
//
// The types and their layouts are ggml's. d, m and dmin are f16; q is an unsigned integer of the
// type's bits unless stated otherwise.
//
//   type    numbers  bytes  value
//   F32           1      4
//   F16           1      2  IEEE half
//   BF16          1      2  the upper half of an f32
//   Q4_0         32     18  d (q - 8)
//   Q4_1         32     20  d q + m
//   Q5_0         32     22  d (q - 16)
//   Q5_1         32     24  d q + m
//   Q8_0         32     34  d q, q signed
//   Q2_K        256     84  d s q - dmin t    s, t: 4 bits for every 16 numbers
//   Q3_K        256    110  d (s - 32) (q - 4)      6 bits for every 16
//   Q4_K        256    144  d s q - dmin t    s, t: 6 bits for every 32
//   Q5_K        256    176  d s q - dmin t    s, t: 6 bits for every 32
//   Q6_K        256    210  d s (q - 32)      s: i8 for every 16
//   IQ4_NL       32     18  d table[q]
//   IQ4_XS      256    136  d (s - 32) table[q]     6 bits for every 32
//
// Products are f32 and are computed from left to right; d s, d (s - 32) and dmin t come first. This
// is ggml's order, so values are equal bit for bit, in this file and in ops/cpu/block_rows.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace thimble {

enum class GgufType : std::uint32_t {  // with ggml's numbers
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

inline constexpr std::size_t kGgufBlock = 32;        // numbers in a block of most types
inline constexpr std::size_t kGgufSuperBlock = 256;  // numbers in a block of K types

struct BlockSize {
  std::int64_t numbers, bytes;
};
constexpr BlockSize block_size(GgufType type) {
  switch (type) {
    case GgufType::f32:
      return {1, 4};
    case GgufType::f16:
    case GgufType::bf16:
      return {1, 2};
    case GgufType::q4_0:
    case GgufType::iq4_nl:
      return {32, 18};
    case GgufType::q4_1:
      return {32, 20};
    case GgufType::q5_0:
      return {32, 22};
    case GgufType::q5_1:
      return {32, 24};
    case GgufType::q8_0:
      return {32, 34};
    case GgufType::q2_k:
      return {256, 84};
    case GgufType::q3_k:
      return {256, 110};
    case GgufType::q4_k:
      return {256, 144};
    case GgufType::q5_k:
      return {256, 176};
    case GgufType::q6_k:
      return {256, 210};
    case GgufType::iq4_xs:
      return {256, 136};
  }
  return {1, 4};
}
constexpr std::int64_t block_bytes(GgufType type, std::int64_t numbers) {
  return numbers / block_size(type).numbers * block_size(type).bytes;
}

// The reference: decodes numbers, a multiple of the block size. `bytes` must have the right size.
void decode_blocks(GgufType type, std::span<const std::byte> bytes, std::span<float> values);

// Columns that share a scale in the integers of a type (below).
constexpr std::int64_t columns_per_scale(GgufType type) {
  return type == GgufType::q2_k || type == GgufType::q3_k || type == GgufType::q6_k ? 16 : 32;
}

// The reference for products in integers: the numbers of a block as value = scale q - min with
// unsigned bytes q, up to the rounding of scale and min. `type` is not a type of floats.
struct BlockIntegers {
  std::uint8_t* numbers;
  float *scales, *mins;  // one for every columns_per_scale(type)
};
void take_integers(GgufType type, const std::byte* block, const BlockIntegers& to);

// Rows that follow each other in a file.
struct BlockRows {
  const std::byte* data = nullptr;
  std::int64_t rows = 0, cols = 0;
  GgufType type = GgufType::f32;
  // > 0: rows belong to heads of this size, which llama.cpp stores with the two numbers that RoPE
  // rotates together as neighbours; thimble keeps the first numbers of all pairs in the first half.
  std::int64_t head_dim = 0;

  std::int64_t row_bytes() const { return block_bytes(type, cols); }
  const std::byte* row(std::int64_t r) const {
    if (head_dim > 0) {
      const std::int64_t i = r % head_dim, half = head_dim / 2;
      r += (i < half ? 2 * i : 2 * (i - half) + 1) - i;
    }
    return data + r * row_bytes();
  }
};

struct BlockMatrix {
  std::vector<BlockRows> parts;  // from top to bottom, all with the same columns

  // The part with row r; r becomes a row of that part.
  const BlockRows& part_of(std::int64_t& r) const {
    const BlockRows* part = parts.data();
    for (; r >= part->rows; ++part) r -= part->rows;
    return *part;
  }
};

inline const BlockMatrix& block_matrix(const Tensor& tensor) {
  return *static_cast<const BlockMatrix*>(tensor.data);
}
Tensor block_tensor(const BlockMatrix& matrix);

}  // namespace thimble
