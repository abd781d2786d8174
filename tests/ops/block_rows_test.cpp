// Matrices in blocks: unpacking equals the reference, and products equal those of the same values
// as plain floats, bit for bit.
#include "tensor/block_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

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
std::vector<T> product(const Tensor& w, std::span<const T> x, bool invariant) {
  const Context context;
  const std::int64_t rows = std::ssize(x) / w.cols;
  std::vector<T> y(index_of(rows * w.rows));
  const std::vector<Tensor> in = {make_tensor(const_cast<T*>(x.data()), rows, w.cols), w};
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
    const Blocks blocks(type, GgufType::q6_k, 30, 512, random);
    const std::vector<T> plain = as<T>(blocks.values());
    const Tensor w = make_tensor(const_cast<T*>(plain.data()), 90, 512);
    for (const std::int64_t rows : {1, 2, 3, 5, 8, 17, 70}) {
      std::vector<float> x(index_of(rows * 512));
      std::ranges::generate(x, [&] { return normal(random); });
      const std::vector<T> input = as<T>(x);
      for (const bool invariant : {true, false}) {
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
