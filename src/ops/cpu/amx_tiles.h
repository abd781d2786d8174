// The products of bf16_tiles.h on AMX. A tile has 16 rows of 64 bytes: left factors 16 x 32
// row-major values, right factors 16 x 16 pairs, sums 16 x 16. Rows and pairs that do not fill a
// tile are computed by pairs::product.
//
//   const tiles::Scope scope(tiles::multiplies_bf16_tiles());  // configures this thread's tiles
//   tiles::product<tiles::Amx, Into::add>(...);                // same arguments as pairs::product
//
// The template parameter Tiles selects where tiles are stored: in the processor, or in memory.
// Tests use the latter to check the arithmetic on any machine.
#pragma once

#include "ops/cpu/bf16_tiles.h"

namespace thimble::cpu::tiles {

// True if the processor has AMX and the operating system allows this process to use it.
bool multiplies_bf16_tiles();

// Configures the calling thread's eight tiles to full size while it exists, unless disabled.
class Scope {
 public:
  explicit Scope(bool enabled);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  bool enabled_;
};

}  // namespace thimble::cpu::tiles

#if defined(__x86_64__)

namespace thimble::cpu::tiles {

using pairs::Into;

inline constexpr std::int64_t kRows = 16;  // rows of every tile, and columns of the sums

// Assembler mnemonics, so that no other code here is compiled for AMX. Strides are in bytes.
struct Amx {
  template <int T>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(T));
  }
  template <int T>
  static void load(const void* from, std::int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  static void store(void* to, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
  }
  template <int Sum, int Left, int Right>
  static void multiply_add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(Left), "i"(Right));
  }
};

// Start addresses of a block's factors and sums, and their row strides in elements.
struct Block {
  const bf16* a;
  std::int64_t a_row;
  const std::uint32_t* b;
  std::int64_t b_row;
  float* c;
  std::int64_t c_row;
};

// 16 M rows and 16 N columns of sums in tiles 0 to 3; left factors in 4 and 5, right in 6 and 7.
template <class Tiles, int M, int N, Into into>
THIMBLE_BF16_PAIRS inline void multiply_block(const Block& at, std::int64_t depth_pairs) {
  const std::int64_t c_bytes = at.c_row * 4;
  const auto each_sum = [&](auto with) {
    with.template operator()<0>(at.c);
    if constexpr (N == 2) with.template operator()<1>(at.c + kRows);
    if constexpr (M == 2) with.template operator()<2>(at.c + kRows * at.c_row);
    if constexpr (M == 2 && N == 2) with.template operator()<3>(at.c + kRows * at.c_row + kRows);
  };
  each_sum([&]<int T>(float* c) {
    if constexpr (into == Into::store)
      Tiles::template zero<T>();
    else
      Tiles::template load<T>(c, c_bytes);
  });
  for (std::int64_t k = 0; k < depth_pairs; k += kRows) {
    const bf16* a = at.a + 2 * k;
    const std::uint32_t* b = at.b + k * at.b_row;
    Tiles::template load<4>(a, at.a_row * 2);
    Tiles::template load<6>(b, at.b_row * 4);
    Tiles::template multiply_add<0, 4, 6>();
    if constexpr (N == 2) {
      Tiles::template load<7>(b + kRows, at.b_row * 4);
      Tiles::template multiply_add<1, 4, 7>();
    }
    if constexpr (M == 2) {
      Tiles::template load<5>(a + kRows * at.a_row, at.a_row * 2);
      Tiles::template multiply_add<2, 5, 6>();
    }
    if constexpr (M == 2 && N == 2) Tiles::template multiply_add<3, 5, 7>();
  }
  each_sum([&]<int T>(float* c) { Tiles::template store<T>(c, c_bytes); });
}

// All columns of 16 M rows.
template <class Tiles, int M, Into into>
THIMBLE_BF16_PAIRS inline void multiply_strip(Block at, std::int64_t width, std::int64_t depth_pairs) {
  const auto move_on = [&](std::int64_t columns) { at.b += columns, at.c += columns, width -= columns; };
  for (; width >= 2 * kRows; move_on(2 * kRows)) multiply_block<Tiles, M, 2, into>(at, depth_pairs);
  for (; width >= kRows; move_on(kRows)) multiply_block<Tiles, M, 1, into>(at, depth_pairs);
}

template <class Tiles, Into into>
THIMBLE_BF16_PAIRS inline void multiply_tiles(Block at, std::int64_t rows, std::int64_t width,
                                              std::int64_t depth_pairs) {
  const auto move_on = [&](std::int64_t down) {
    at.a += down * at.a_row, at.c += down * at.c_row, rows -= down;
  };
  for (; rows >= 2 * kRows; move_on(2 * kRows)) multiply_strip<Tiles, 2, into>(at, width, depth_pairs);
  for (; rows >= kRows; move_on(kRows)) multiply_strip<Tiles, 1, into>(at, width, depth_pairs);
}

THIMBLE_BF16_PAIRS inline void rescale_columns(float* c, std::int64_t c_row, std::int64_t rows,
                                               std::int64_t width, const float* keep) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t n = 0; n < width; n += pairs::kLanes) {
      float* target = c + r * c_row + n;
      _mm512_storeu_ps(target, _mm512_mul_ps(_mm512_loadu_ps(target), _mm512_loadu_ps(keep + n)));
    }
}

// Same as pairs::product.
template <class Tiles, Into into>
THIMBLE_BF16_PAIRS inline void product(std::int64_t rows, std::int64_t width, std::int64_t depth_pairs,
                                       const bf16* a, std::int64_t a_row, const std::uint32_t* b,
                                       std::int64_t b_row, float* c, std::int64_t c_row,
                                       const float* keep = nullptr) {
  const std::int64_t in_tiles = rows / kRows * kRows, depth = depth_pairs / kRows * kRows;
  if (in_tiles == 0 || depth == 0)
    return pairs::product<into>(rows, width, depth_pairs, a, a_row, b, b_row, c, c_row, keep);
  if constexpr (into == Into::rescale_and_add) {
    rescale_columns(c, c_row, in_tiles, width, keep);
    multiply_tiles<Tiles, Into::add>({a, a_row, b, b_row, c, c_row}, in_tiles, width, depth);
  } else {
    multiply_tiles<Tiles, into>({a, a_row, b, b_row, c, c_row}, in_tiles, width, depth);
  }
  if (depth < depth_pairs)
    pairs::product<Into::add>(in_tiles, width, depth_pairs - depth, a + 2 * depth, a_row, b + depth * b_row,
                              b_row, c, c_row);
  if (in_tiles < rows)
    pairs::product<into>(rows - in_tiles, width, depth_pairs, a + in_tiles * a_row, a_row, b, b_row,
                         c + in_tiles * c_row, c_row, keep);
}

// Uses AMX if the processor has it. Call it inside a Scope.
template <Into into>
THIMBLE_BF16_PAIRS inline void fastest_product(std::int64_t rows, std::int64_t width,
                                               std::int64_t depth_pairs, const bf16* a, std::int64_t a_row,
                                               const std::uint32_t* b, std::int64_t b_row, float* c,
                                               std::int64_t c_row, const float* keep = nullptr) {
  if (multiplies_bf16_tiles())
    product<Amx, into>(rows, width, depth_pairs, a, a_row, b, b_row, c, c_row, keep);
  else
    pairs::product<into>(rows, width, depth_pairs, a, a_row, b, b_row, c, c_row, keep);
}

}  // namespace thimble::cpu::tiles
#endif
