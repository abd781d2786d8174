// The arithmetic of amx_tiles.h with emulated tiles in memory, which run on processors without AMX.
#include "ops/cpu/amx_tiles.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"

#if defined(__x86_64__)

namespace thimble::cpu {
namespace {

using pairs::Into;

// Eight tiles of 16 rows of 16 words.
struct TilesInMemory {
  using Tile = std::array<std::array<std::uint32_t, 16>, 16>;
  static inline std::array<Tile, 8> tile{};

  template <int T>
  static void zero() {
    tile[T] = {};
  }
  template <int T>
  static void load(const void* from, std::int64_t stride) {
    for (std::size_t r = 0; r < 16; ++r)
      std::memcpy(tile[T][r].data(),
                  static_cast<const std::byte*>(from) + static_cast<std::int64_t>(r) * stride, 64);
  }
  template <int T>
  static void store(void* to, std::int64_t stride) {
    for (std::size_t r = 0; r < 16; ++r)
      std::memcpy(static_cast<std::byte*>(to) + static_cast<std::int64_t>(r) * stride, tile[T][r].data(), 64);
  }
  // sum[m][n] += left[m][k] . right[k][n] over bf16 pairs, as TDPBF16PS.
  template <int Sum, int Left, int Right>
  static void multiply_add() {
    for (std::size_t m = 0; m < 16; ++m)
      for (std::size_t k = 0; k < 16; ++k)
        for (std::size_t n = 0; n < 16; ++n) {
          float sum = std::bit_cast<float>(tile[Sum][m][n]);
          const std::uint32_t left = tile[Left][m][k], right = tile[Right][k][n];
          sum += half_of(left, 0) * half_of(right, 0);
          sum += half_of(left, 1) * half_of(right, 1);
          tile[Sum][m][n] = std::bit_cast<std::uint32_t>(sum);
        }
  }

 private:
  static float half_of(std::uint32_t word, int which) {
    return to_f32(bf16{static_cast<std::uint16_t>(which ? word >> 16 : word & 0xFFFF)});
  }
};

struct Factors {
  std::int64_t rows, width, depth_pairs, a_row, b_row, c_row;
  std::vector<bf16> a;
  std::vector<std::uint32_t> b;
  std::vector<float> c, keep;

  // The gaps between rows are NaN, so reading them would show.
  Factors(std::int64_t rows_, std::int64_t width_, std::int64_t depth)
      : rows(rows_),
        width(width_),
        depth_pairs(depth),
        a_row(2 * depth + 6),
        b_row(width + 5),
        c_row(width + 3),
        a(static_cast<std::size_t>(rows * a_row), bf16{0xFFFF}),
        b(static_cast<std::size_t>(depth * b_row), 0xFFFFFFFF),
        c(static_cast<std::size_t>(rows * c_row), std::numeric_limits<float>::quiet_NaN()),
        keep(static_cast<std::size_t>(width)) {
    Rng rng(1);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t k = 0; k < 2 * depth; ++k)
        a[static_cast<std::size_t>(r * a_row + k)] = to_bf16(rng.normal());
      for (std::int64_t n = 0; n < width; ++n) c[static_cast<std::size_t>(r * c_row + n)] = rng.normal();
    }
    for (std::int64_t k = 0; k < depth; ++k)
      for (std::int64_t n = 0; n < width; ++n)
        b[static_cast<std::size_t>(k * b_row + n)] =
            std::uint32_t{to_bf16(rng.normal()).bits} << 16 | to_bf16(rng.normal()).bits;
    for (float& factor : keep) factor = rng.normal();
  }

  // a . b at (r, n) in f64.
  double product(std::int64_t r, std::int64_t n) const {
    double sum = 0;
    for (std::int64_t k = 0; k < depth_pairs; ++k)
      for (const int i : {0, 1}) {
        const std::uint32_t word = b[static_cast<std::size_t>(k * b_row + n)];
        const bf16 right{static_cast<std::uint16_t>(i ? word >> 16 : word & 0xFFFF)};
        sum += double{to_f32(a[static_cast<std::size_t>(r * a_row + 2 * k + i)])} * double{to_f32(right)};
      }
    return sum;
  }
};

template <Into into>
void expect_product(const Factors& f) {
  std::vector<float> c = f.c;
  tiles::product<TilesInMemory, into>(f.rows, f.width, f.depth_pairs, f.a.data(), f.a_row, f.b.data(),
                                      f.b_row, c.data(), f.c_row, f.keep.data());
  for (std::int64_t r = 0; r < f.rows; ++r)
    for (std::int64_t n = 0; n < f.c_row; ++n) {
      const auto i = static_cast<std::size_t>(r * f.c_row + n);
      if (n >= f.width) {
        ASSERT_TRUE(std::isnan(c[i])) << "written between rows";
        continue;
      }
      const double before = into == Into::store ? 0.0 : double{f.c[i]};
      const double factor = into == Into::rescale_and_add ? double{f.keep[static_cast<std::size_t>(n)]} : 1.0;
      ASSERT_NEAR(double{c[i]}, before * factor + f.product(r, n), 2e-4) << r << ", " << n;
    }
}

TEST(AmxTiles, ProductsMatchF64AtEverySize) {
  if (!multiplies_bf16_pairs()) GTEST_SKIP() << "partial tiles need AVX-512 BF16";
  for (const std::int64_t rows : {1, 16, 17, 32, 48, 63})
    for (const std::int64_t width : {16, 32, 48})
      for (const std::int64_t depth : {1, 8, 16, 17, 32, 40}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << width << ", " << depth << " pairs deep");
        const Factors factors(rows, width, depth);
        expect_product<Into::store>(factors);
        expect_product<Into::add>(factors);
        expect_product<Into::rescale_and_add>(factors);
      }
}

TEST(AmxTiles, HardwareTilesMatchEmulatedTiles) {
  if (!tiles::multiplies_bf16_tiles()) GTEST_SKIP() << "this processor has no AMX";
  const tiles::Scope scope(true);
  const Factors f(48, 48, 40);
  std::vector<float> in_memory = f.c, in_hardware = f.c;
  tiles::product<TilesInMemory, Into::add>(f.rows, f.width, f.depth_pairs, f.a.data(), f.a_row, f.b.data(),
                                           f.b_row, in_memory.data(), f.c_row);
  tiles::product<tiles::Amx, Into::add>(f.rows, f.width, f.depth_pairs, f.a.data(), f.a_row, f.b.data(),
                                        f.b_row, in_hardware.data(), f.c_row);
  for (std::int64_t r = 0; r < f.rows; ++r)
    for (std::int64_t n = 0; n < f.width; ++n) {
      const auto i = static_cast<std::size_t>(r * f.c_row + n);
      ASSERT_NEAR(in_memory[i], in_hardware[i], 1e-4f) << r << ", " << n;
    }
}

}  // namespace
}  // namespace thimble::cpu

#endif
