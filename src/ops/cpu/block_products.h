// Products with matrices in the blocks of a GGUF file (tensor/block_rows.h), in 8-bit integers.
//
// Every row of x is rounded to 8 bits once per call, with a scale for every 32 columns:
// x[i] = scale q, |q| <= 127. A weight is scale q - min, where q is an unsigned byte and scale and
// min belong to a group of 32 columns, or of 16 in Q2_K, Q3_K and Q6_K. Therefore
//
//   y = sum over groups of  w.scale x.scale (sum of w.q x.q)  -  w.min (x.scale (sum of x.q))
//
// Sums of integers are exact. Sums over groups are f32 and have a fixed order, which does not
// depend on the number of rows: lane l of 16 (VNNI), 8 (AVX2) or 1 adds the groups l, l + lanes,
// ..., then the lanes are added as a tree. So the products are batch-invariant.
//
//   block_product_vnni      AVX-512 VNNI
//   block_product_avx2      products of bytes to sums of 16 bits: AVX2
//   block_product_portable  plain loops
//
// A few rows of x are multiplied with each row of w right after it was unpacked to bytes. For more
// rows, as many rows of w as there are lanes are unpacked into a tile, in which each vector holds
// four columns of every row, and the tile is multiplied with all rows of x.
#pragma once

#include <cstdint>

#include "tensor/arena.h"
#include "tensor/block_rows.h"
#include "tensor/tensor.h"

namespace thimble::cpu {

// Columns of rows in integers are padded to a multiple of this; what follows the last column is 0.
inline constexpr std::int64_t kPaddedColumns = 512;

// Rows of x in integers. `together` rows are interleaved: four columns of each, then the next four
// columns; for scales and sums, one number of each.
class IntegerRows {
 public:
  IntegerRows(std::byte* memory, std::int64_t rows, std::int64_t cols, std::int64_t together)
      : rows(rows), cols(cols), padded(padded_columns(cols)), together(together), memory_(memory) {}

  // Enough for any `together` up to kMaxTogether.
  static std::int64_t bytes(std::int64_t rows, std::int64_t cols) {
    return align_up(rows, kMaxTogether) * row_bytes(cols);
  }
  static constexpr std::int64_t kMaxTogether = 8;

  static std::int64_t padded_columns(std::int64_t cols) {
    return (cols + kPaddedColumns - 1) / kPaddedColumns * kPaddedColumns;
  }

  // Of the `together` rows from n on, which is a multiple of it. `group`: 16 or 32 columns.
  std::int8_t* numbers(std::int64_t n) const { return reinterpret_cast<std::int8_t*>(at(n, 0)); }
  float* scales(std::int64_t n, std::int64_t group) const { return floats(n, padded, group); }
  float* sums(std::int64_t n, std::int64_t group) const {  // scale times the sum of the numbers
    return floats(n, padded + padded * 3 / 8, group);
  }

  std::int64_t rows, cols, padded, together;

 private:
  static std::int64_t row_bytes(std::int64_t cols) { return padded_columns(cols) * 7 / 4; }
  std::byte* at(std::int64_t n, std::int64_t byte) const {
    return memory_ + n * row_bytes(cols) + byte * together;
  }
  float* floats(std::int64_t n, std::int64_t first, std::int64_t group) const {
    return reinterpret_cast<float*>(at(n, first + (group == 16 ? padded / 8 : 0)));
  }

  std::byte* memory_;
};

// Rounds `together` rows of x (f32 or bf16) from n on. Rows after the last one are 0. A group with
// a number that is not finite makes every product with it NaN.
void round_rows(const Tensor& x, std::int64_t n, const IntegerRows& to);

struct BlockProduct {
  const IntegerRows* x;
  const BlockRows* w;
  std::int64_t first, count;  // rows of w
  Tensor bias;                // [1, count], or absent
  Tensor y;                   // [N, count], f32 or bf16
  std::byte* memory;          // block_product_bytes()
};

struct BlockProductKernel {
  void (*multiply)(const BlockProduct&);
  std::int64_t together;  // rows of x for tiles
};

// The kernel for this processor.
BlockProductKernel block_product_kernel();
std::int64_t block_product_bytes(std::int64_t cols);

// Whether a type is stored in integers of at most 8 bits.
bool is_in_integers(GgufType type);
bool has_integers(const BlockMatrix& matrix);

// From this number of rows on, x is interleaved and tiles are used.
inline constexpr std::int64_t kRowsWorthIntegerTiles = 3;

// A row of w. Types with signed bytes keep them if `keeps_sign`; they have no minimum then.
struct WeightRow {
  std::uint8_t* numbers;
  float *scales, *mins;

  static std::int64_t bytes(std::int64_t cols) { return IntegerRows::padded_columns(cols) * 3 / 2; }
  WeightRow(std::byte* memory, std::int64_t padded)
      : numbers(reinterpret_cast<std::uint8_t*>(memory)),
        scales(reinterpret_cast<float*>(memory + padded)),
        mins(scales + padded / 16) {}
};

constexpr bool has_signed_bytes(GgufType type) {
  return type == GgufType::q8_0 || type == GgufType::iq4_nl || type == GgufType::iq4_xs;
}
// For types without a faster way.
void unpack_integers(const BlockRows& rows, std::int64_t row, bool keeps_sign, const WeightRow& to);

void block_product_vnni(const BlockProduct& product);
void block_product_avx2(const BlockProduct& product);
void block_product_portable(const BlockProduct& product);
bool supports_block_product_vnni();
bool supports_block_product_avx2();

}  // namespace thimble::cpu
