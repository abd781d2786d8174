// Products on packed f32 panels, at the boundaries of tiles and blocks. (The generic tests run them
// through linear and head_loss, at the CPU levels that use them.)
#include "ops/cpu/gemm.h"

#include <array>
#include <limits>

#include "base/parallel.h"
#include "base/rng.h"
#include "ops/instruction_set.h"
#include "ops/op_harness.h"
#include "tensor/arena.h"

namespace thimble {
namespace {

constexpr std::int64_t kGap = 3;  // elements between rows, all NaN

// Normal numbers that are exact in bf16, in either dtype.
struct Matrix {
  std::vector<float> floats;
  std::vector<bf16> bf16s;
  Tensor tensor;

  Matrix(std::int64_t rows, std::int64_t cols, DType dtype, std::uint64_t seed)
      : floats(static_cast<std::size_t>(rows * (cols + kGap)), std::numeric_limits<float>::quiet_NaN()),
        bf16s(floats.size(), bf16{0xFFFF}) {
    Rng rng(seed);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) {
        const auto i = static_cast<std::size_t>(r * (cols + kGap) + c);
        bf16s[i] = to_bf16(rng.normal());
        floats[i] = to_f32(bf16s[i]);
      }
    tensor = dtype == DType::bf16 ? make_tensor(bf16s.data(), rows, cols, cols + kGap)
                                  : make_tensor(floats.data(), rows, cols, cols + kGap);
  }
  double at(std::int64_t r, std::int64_t c) const {
    return static_cast<double>(floats[static_cast<std::size_t>(r * tensor.stride + c)]);
  }
};

struct Case {
  std::int64_t M, N, K;
  bool left_transposed = false, right_transposed = false, add = false, bias = false;
};

struct Factors {
  Case of;
  Matrix a, b, bias;

  Factors(const Case& c, DType dtype)
      : of(c),
        a(c.left_transposed ? c.K : c.M, c.left_transposed ? c.M : c.K, dtype, 1),
        b(c.right_transposed ? c.N : c.K, c.right_transposed ? c.K : c.N, dtype, 2),
        bias(1, c.N, DType::f32, 3) {}

  double expected(std::int64_t m, std::int64_t n, double before) const {
    double sum = (of.add ? before : 0) + (of.bias ? bias.at(0, n) : 0);
    for (std::int64_t k = 0; k < of.K; ++k)
      sum += (of.left_transposed ? a.at(k, m) : a.at(m, k)) * (of.right_transposed ? b.at(n, k) : b.at(k, n));
    return sum;
  }
  void multiply_into(const Tensor& c) const {
    std::vector<std::byte> memory(
        static_cast<std::size_t>(cpu::packed_gemm_bytes(of.M, of.N, of.K, c.dtype) + kAlignment));
    auto* start = reinterpret_cast<std::byte*>(
        align_up(static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(memory.data()))));
    cpu::packed_gemm({a.tensor, of.left_transposed}, {b.tensor, of.right_transposed}, c, of.add,
                     of.bias ? bias.tensor : Tensor{}, start);
  }
};

void expect_product(const Case& c, DType factors, DType result) {
  SCOPED_TRACE(fmt::format("[{}, {}] times [{}, {}], {} to {}, transposed {} {}, add {}, bias {}", c.M, c.K,
                           c.K, c.N, dtype_name(factors), dtype_name(result), c.left_transposed,
                           c.right_transposed, c.add, c.bias));
  const Factors f(c, factors);
  Matrix before(c.M, c.N, result, 4), after = before;
  after.tensor.data = result == DType::bf16 ? static_cast<void*>(after.bf16s.data()) : after.floats.data();
  f.multiply_into(after.tensor);
  // Check every element of a small result, and a sample of a large one.
  const std::int64_t step = std::max<std::int64_t>(1, c.M * c.N / 2000);
  for (std::int64_t i = 0; i < c.M * c.N; i += step) {
    const std::int64_t m = i / c.N, n = i % c.N;
    const double expected = f.expected(m, n, before.at(m, n));
    const double found = result == DType::bf16 ? static_cast<double>(to_f32(after.tensor.row<bf16>(m)[n]))
                                               : static_cast<double>(after.tensor.row<float>(m)[n]);
    // Sums of K products in f32; bf16 rounds once more.
    const double bound = 1e-6 * std::sqrt(static_cast<double>(c.K)) * 3 +
                         (result == DType::bf16 ? std::abs(expected) * 0x1p-8 : 0);
    ASSERT_NEAR(found, expected, bound) << m << ", " << n;
  }
  for (std::int64_t m = 0; m < c.M; ++m)  // nothing is written between rows
    for (std::int64_t gap = c.N; gap < c.N + kGap; ++gap) {
      if (result == DType::bf16)
        ASSERT_EQ(after.tensor.row<bf16>(m)[gap].bits, 0xFFFF);
      else
        ASSERT_TRUE(std::isnan(after.tensor.row<float>(m)[gap]));
    }
}

TEST(PackedGemm, MatchesF64AtEverySizeOnEveryInstructionSet) {
  for (const CpuLevel level : cpu_levels()) {
    SCOPED_TRACE(cpu_level_name(level));
    const InstructionSet chosen(level);
    for (const DType factors : {DType::f32, DType::bf16})
      for (const DType result : {DType::f32, DType::bf16}) {
        if (factors == DType::f32 && result == DType::bf16) continue;  // not supported
        for (const bool left : {false, true})
          for (const bool right : {false, true}) {
            expect_product({1, 1, 1, left, right}, factors, result);
            expect_product({7, 17, 33, left, right, true}, factors, result);
            expect_product({6, 48, 5, left, right, false, true}, factors, result);
            expect_product({50, 95, 70, left, right, true, true}, factors, result);
            expect_product({9, 20, 1030, left, right, true, true}, factors, result);  // 3 k blocks
          }
        expect_product({1030, 5, 40, false, true}, factors, result);  // two blocks of rows
        expect_product({5, 1030, 40, true, false}, factors, result);  // two blocks of columns
      }
  }
}

TEST(PackedGemm, HasTheSameBitsForAnyThreadCount) {
  const Factors f({150, 260, 700, false, true}, DType::f32);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 3}) {
    const Threads scope(threads);
    results.emplace_back(150 * 260);
    f.multiply_into(make_tensor(results.back().data(), 150, 260));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

// The result of a row does not depend on other rows.
TEST(PackedGemm, ARowHasTheSameBitsAloneAndInABatch) {
  const Factors all({150, 90, 700, false, true}, DType::f32);
  std::vector<float> batch(150 * 90), alone(90);
  all.multiply_into(make_tensor(batch.data(), 150, 90));
  Factors one({1, 90, 700, false, true}, DType::f32);
  one.b = all.b;
  one.b.tensor.data = one.b.floats.data();
  one.a.tensor = all.a.tensor.row_range(77, 1);
  one.multiply_into(make_tensor(alone.data(), 1, 90));
  EXPECT_EQ(alone, std::vector<float>(batch.begin() + 77 * 90, batch.begin() + 78 * 90));
}

}  // namespace
}  // namespace thimble
