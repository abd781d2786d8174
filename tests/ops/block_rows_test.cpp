// Matrices in blocks: unpacking equals the reference. Products with floats equal those of the same
// values as plain floats, bit for bit; products in integers equal those with x rounded to 8 bits.
#include "tensor/block_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/machine.h"
#include "ops/cpu/block_products.h"
#include "ops/cpu/linear.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "tensor/arena.h"

namespace thimble::block_rows_test {
namespace {

constexpr GgufType kTypes[] = {GgufType::f32,  GgufType::f16,    GgufType::bf16,  GgufType::q4_0,
                               GgufType::q4_1, GgufType::q5_0,   GgufType::q5_1,  GgufType::q8_0,
                               GgufType::q2_k, GgufType::q3_k,   GgufType::q4_k,  GgufType::q5_k,
                               GgufType::q6_k, GgufType::iq4_nl, GgufType::iq4_xs};

// Random bytes; as f16, every pair of bytes is a finite number below 2.
std::vector<std::byte> random_blocks(GgufType type, std::int64_t numbers, std::mt19937& random) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(block_bytes(type, numbers)));
  std::normal_distribution<float> normal(0, 0.1f);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(random());
  const auto put = [&](std::size_t at, auto value) { std::memcpy(&bytes[at], &value, sizeof value); };
  const auto size = index_of(block_size(type).bytes);
  for (std::size_t at = 0; at < bytes.size(); at += size) {
    const f16 d = to_f16(normal(random)), m = to_f16(normal(random));
    if (type == GgufType::f32)
      put(at, normal(random));
    else if (type == GgufType::bf16)
      put(at, to_bf16(normal(random)));
    else if (type == GgufType::q6_k || type == GgufType::q3_k)
      put(at + size - 2, d);
    else if (type == GgufType::q2_k)
      put(at + 80, d), put(at + 82, m);
    else
      put(at, d);
    if (type == GgufType::q4_1 || type == GgufType::q5_1 || type == GgufType::q4_k || type == GgufType::q5_k)
      put(at + 2, m);
  }
  return bytes;
}

// q;k;v as in a file: three tensors of different places, the first two in llama's order of rows.
struct Blocks {
  std::vector<std::byte> bytes[3];
  BlockMatrix matrix;

  Blocks(GgufType type, GgufType last, std::int64_t rows, std::int64_t cols, std::mt19937& random) {
    for (int i = 0; i < 3; ++i) {
      const GgufType here = i < 2 ? type : last;
      bytes[i] = random_blocks(here, rows * cols, random);
      matrix.parts.push_back(
          {.data = bytes[i].data(), .rows = rows, .cols = cols, .type = here, .head_dim = i < 2 ? 6 : 0});
    }
  }
  Tensor tensor() const { return block_tensor(matrix); }
  std::vector<float> values() const {
    const Tensor all = tensor();
    std::vector<float> out(static_cast<std::size_t>(all.count()));
    for (std::int64_t r = 0; r < all.rows; ++r) {
      std::int64_t row = r;
      const BlockRows& part = matrix.part_of(row);
      decode_blocks(part.type, {part.row(row), index_of(part.row_bytes())},
                    std::span(out).subspan(index_of(r * all.cols), index_of(all.cols)));
    }
    return out;
  }
};

template <class T>
std::vector<T> as(std::span<const float> values) {
  std::vector<T> out;
  for (const float value : values)
    if constexpr (std::is_same_v<T, float>)
      out.push_back(value);
    else
      out.push_back(to_bf16(value));
  return out;
}

template <class T>
std::vector<T> product(const Tensor& w, std::span<const T> x, bool invariant,
                       std::span<const float> bias = {}) {
  const Context context;
  const std::int64_t rows = std::ssize(x) / w.cols;
  std::vector<T> y(index_of(rows * w.rows));
  std::vector<Tensor> in = {make_tensor(const_cast<T*>(x.data()), rows, w.cols), w};
  if (!bias.empty()) in.push_back(make_tensor(const_cast<float*>(bias.data()), 1, w.rows));
  const std::vector<Tensor> out = {make_tensor(y.data(), rows, w.rows)};
  const std::vector<Shape> shapes = {in[0].shape(), in[1].shape()};
  const Attributes attributes = LinearAttributes{invariant};
  const Arena scratch(cpu::kLinear.scratch_bytes(shapes, attributes), "a test", "");
  OpCall call{.in = in, .out = out, .d_out = {}, .d_in = {}, .attributes = attributes, .scratch = {}};
  call.scratch = {scratch.at(0), 1, scratch.bytes(), scratch.bytes(), DType::u8, Device::cpu};
  cpu::kLinear.forward(context, call);
  return y;
}

template <class T>
void expect_products_of_plain_weights() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const GgufType type : kTypes) {
    const Blocks blocks(type, GgufType::f16, 30, 512, random);
    const std::vector<T> plain = as<T>(blocks.values());
    const Tensor w = make_tensor(const_cast<T*>(plain.data()), 90, 512);
    for (const std::int64_t rows : {1, 2, 3, 5, 8, 17, 70}) {
      std::vector<float> x(index_of(rows * 512));
      std::ranges::generate(x, [&] { return normal(random); });
      const std::vector<T> input = as<T>(x);
      for (const bool invariant : {true, false}) {
        if (invariant && cpu::is_in_integers(type)) continue;  // see below
        // Without products of bf16 pairs, inference multiplies the exact values of blocks.
        if (invariant && sizeof(T) == 2 && !cpu::supports_linear_rows_bf16()) continue;
        const auto expected = product<T>(w, input, invariant);
        const auto found = product<T>(blocks.tensor(), input, invariant);
        ASSERT_EQ(std::memcmp(expected.data(), found.data(), expected.size() * sizeof(T)), 0)
            << "type " << static_cast<int>(type) << ", " << rows << " rows, invariant " << invariant;
      }
    }
  }
}

TEST(BlockRows, UnpackToTheValuesOfTheReference) {
  std::mt19937 random(3);
  for (const GgufType type : kTypes) {
    const Blocks blocks(type, type, 12, 768, random);
    const std::vector<float> expected = blocks.values();
    std::vector<float> row(768);
    std::vector<bf16> narrow(768);
    for (std::int64_t r = 0; r < 36; ++r) {
      cpu::unpack_row(blocks.tensor(), {}, r, make_tensor(row.data(), 1, 768), 0);
      cpu::unpack_row(blocks.tensor(), {}, r, make_tensor(narrow.data(), 1, 768), 0);
      for (std::size_t i = 0; i < row.size(); ++i) {
        const float value = expected[index_of(r) * 768 + i];
        ASSERT_EQ(row[i], value) << "type " << static_cast<int>(type) << ", row " << r << ", " << i;
        // The hardware rounds numbers below 2^-126 to 0.
        if (std::abs(value) >= 0x1p-126f) {
          ASSERT_EQ(narrow[i].bits, to_bf16(value).bits);
        }
      }
    }
  }
}

TEST(BlockRows, ProductsInF32AreThoseOfPlainWeights) {
  expect_products_of_plain_weights<float>();
}

TEST(BlockRows, ProductsInBf16AreThoseOfRoundedWeights) {
  expect_products_of_plain_weights<bf16>();
}

// ---- Products in integers.

constexpr CpuLevel kLevels[] = {CpuLevel::scalar, CpuLevel::avx2, CpuLevel::avx512, CpuLevel::avx512_bf16};

// Calls test(type) for each type of integers, at every level of this machine.
template <class Test>
void for_integer_types(const Test& test) {
  const CpuLevel most = cpu_level();
  for (const CpuLevel level : kLevels) {
    if (level > most) continue;
    const CpuLevelScope scope(level);
    for (const GgufType type : kTypes) {
      if (!cpu::is_in_integers(type)) continue;
      SCOPED_TRACE(testing::Message()
                   << "type " << static_cast<int>(type) << " at " << cpu_level_name(level));
      test(type);
    }
  }
}

// Numbers that are exact in 8 bits: each group of 32 has 127 times its scale, a power of two.
std::vector<float> exact_rows(std::int64_t count, std::mt19937& random) {
  std::vector<float> x(index_of(count));
  float scale = 1;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i % 32 == 0) scale = std::ldexp(1.0f, static_cast<int>(random() % 5) - 8);
    x[i] = scale * static_cast<float>(i % 32 == 5 ? -127 : static_cast<int>(random() % 255) - 127);
  }
  return x;
}

// y = x w^T + bias, and how large the terms of each sum are.
struct Reference {
  std::vector<double> y, size;

  Reference(std::span<const float> w, std::span<const float> x, std::int64_t cols,
            std::span<const float> bias) {
    const std::int64_t outputs = std::ssize(w) / cols;
    for (std::int64_t n = 0; n < std::ssize(x) / cols; ++n)
      for (std::int64_t o = 0; o < outputs; ++o) {
        double sum = bias.empty() ? 0 : bias[index_of(o)], total = std::abs(sum);
        for (std::int64_t i = 0; i < cols; ++i) {
          const double term = double{w[index_of(o * cols + i)]} * x[index_of(n * cols + i)];
          sum += term, total += std::abs(term);
        }
        y.push_back(sum), size.push_back(total);
      }
  }
};

TEST(BlockRows, ProductsInIntegersAreExactForRowsOfIntegers) {
  std::mt19937 random(11);
  for_integer_types([&](GgufType type) {
    for (const std::int64_t cols : {256, 768}) {
      const Blocks blocks(type, GgufType::q6_k, 12, cols, random);
      const std::vector<float> x = exact_rows(11 * cols, random), bias = exact_rows(36, random);
      const Reference expected(blocks.values(), x, cols, bias);
      for (const std::int64_t rows : {1, 2, 3, 11}) {
        const auto found =
            product<float>(blocks.tensor(), std::span(x).first(index_of(rows * cols)), true, bias);
        for (std::size_t i = 0; i < found.size(); ++i)
          ASSERT_NEAR(found[i], expected.y[i], 2e-6 * expected.size[i] + 1e-9) << rows << " rows, " << i;
      }
    }
  });
}

TEST(BlockRows, ProductsInIntegersErrByTheRoundingOfRows) {
  std::mt19937 random(12);
  std::normal_distribution<float> normal;
  for_integer_types([&](GgufType type) {
    const Blocks blocks(type, type, 12, 512, random);
    std::vector<float> x(4 * 512), half_step(4 * 512);
    std::ranges::generate(x, [&] { return normal(random); });
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto group = std::span(x).subspan(i / 32 * 32, 32);
      half_step[i] =
          std::abs(*std::ranges::max_element(group, {}, [](float v) { return std::abs(v); })) / 254;
    }
    std::vector<float> magnitudes = blocks.values();
    const Reference expected(magnitudes, x, 512, {});
    for (float& value : magnitudes) value = std::abs(value);
    const Reference bound(magnitudes, half_step, 512, {});
    const auto found = product<float>(blocks.tensor(), std::span<const float>(x), true);
    double error = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      ASSERT_NEAR(found[i], expected.y[i], 1.001 * bound.y[i] + 1e-5);
      error = std::max(error, std::abs(found[i] - expected.y[i]));
    }
    EXPECT_GT(error, 0);
  });
}

template <class T>
void expect_rows_do_not_depend_on_others() {
  std::mt19937 random(13);
  std::normal_distribution<float> normal;
  for_integer_types([&](GgufType type) {
    const Blocks blocks(type, GgufType::q6_k, 6, 768, random);
    std::vector<float> x(11 * 768);
    std::ranges::generate(x, [&] { return normal(random); });
    const std::vector<T> input = as<T>(x);
    const auto all = product<T>(blocks.tensor(), std::span<const T>(input), true);
    for (const std::int64_t rows : {1, 2, 3, 9})
      for (std::int64_t n = 0; n + rows <= 11; n += rows) {
        const auto some =
            product<T>(blocks.tensor(),
                       std::span<const T>(input).subspan(index_of(n * 768), index_of(rows * 768)), true);
        ASSERT_EQ(std::memcmp(some.data(), &all[index_of(n * 18)], some.size() * sizeof(T)), 0)
            << rows << " rows from " << n;
      }
  });
}

TEST(BlockRows, RowsInIntegersDoNotDependOnOthers) {
  expect_rows_do_not_depend_on_others<float>();
  expect_rows_do_not_depend_on_others<bf16>();
}

TEST(BlockRows, TheLargestIntegersDoNotOverflow) {
  for_integer_types([&](GgufType type) {
    const std::int64_t cols = 256;
    for (const int byte : {0x00, 0x7F, 0x80, 0xFF}) {
      std::vector<std::byte> bytes(index_of(block_bytes(type, cols)), static_cast<std::byte>(byte));
      const auto size = index_of(block_size(type).bytes);
      const auto put = [&](std::size_t at) {  // d, or the minimum's: 2^-10
        for (std::size_t b = at; b < bytes.size(); b += size)
          bytes[b] = std::byte{0}, bytes[b + 1] = std::byte{0x14};
      };
      if (type == GgufType::q6_k || type == GgufType::q3_k)
        put(size - 2);
      else if (type == GgufType::q2_k)
        put(80), put(82);
      else
        put(0);
      if (type == GgufType::q4_1 || type == GgufType::q5_1 || type == GgufType::q4_k ||
          type == GgufType::q5_k)
        put(2);
      BlockMatrix matrix;
      matrix.parts.push_back({.data = bytes.data(), .rows = 1, .cols = cols, .type = type});
      std::vector<float> w(index_of(cols));
      decode_blocks(type, bytes, w);
      for (const float each : {127.0f, -127.0f}) {
        const std::vector<float> x(index_of(3 * cols), each);
        const Reference expected(w, x, cols, {});
        for (const std::int64_t rows : {1, 3})
          ASSERT_NEAR(
              product<float>(block_tensor(matrix), std::span(x).first(index_of(rows * cols)), true)[0],
              expected.y[0], 2e-6 * expected.size[0])
              << "bytes of " << byte << ", " << rows << " rows of " << each;
      }
    }
  });
}

TEST(BlockRows, RowsThatAreNotFiniteStayNotFinite) {
  std::mt19937 random(14);
  for_integer_types([&](GgufType type) {
    const Blocks blocks(type, type, 6, 512, random);
    std::vector<float> x(5 * 512, 0.5f);
    x[512 + 100] = std::numeric_limits<float>::quiet_NaN();
    x[2 * 512 + 511] = std::numeric_limits<float>::infinity();
    std::fill(&x[3 * 512], &x[4 * 512], 0.0f);
    std::fill(&x[4 * 512], &x[5 * 512 - 1] + 1, 1e-38f);  // its inverse is infinite
    const auto y = product<float>(blocks.tensor(), std::span<const float>(x), true);
    for (std::size_t o = 0; o < 18; ++o) {
      EXPECT_TRUE(std::isfinite(y[o]));
      EXPECT_FALSE(std::isfinite(y[18 + o]));
      EXPECT_FALSE(std::isfinite(y[36 + o]));
      EXPECT_EQ(y[54 + o], 0);
      EXPECT_LT(std::abs(y[72 + o]), 1e-30f);
    }
  });
}

TEST(BlockRows, HeadsAreReadInTheOrderOfThimble) {
  const std::vector<float> values = {0, 1, 2, 3, 4, 5, 6, 7};  // two heads of four rows
  const BlockRows rows{.data = reinterpret_cast<const std::byte*>(values.data()),
                       .rows = 8,
                       .cols = 1,
                       .type = GgufType::f32,
                       .head_dim = 4};
  std::vector<float> found;
  for (std::int64_t r = 0; r < 8; ++r) {
    float value;
    std::memcpy(&value, rows.row(r), sizeof value);
    found.push_back(value);
  }
  EXPECT_EQ(found, (std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7}));
}

}  // namespace
}  // namespace thimble::block_rows_test
