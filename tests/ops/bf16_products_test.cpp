// The AVX-512 BF16 kernels at the boundaries of their tiles, panels and windows. (The generic tests
// cover common sizes, and processors without AVX-512 BF16.)
#include <cmath>

#include "base/machine.h"
#include "base/parallel.h"
#include "ops/attention.h"
#include "ops/cpu/gemm.h"
#include "ops/fill.h"
#include "ops/op_harness.h"

namespace thimble {
namespace {

// Numbers that are exact in bf16. Rows have gaps, which are NaN.
struct Bf16Matrix {
  std::vector<bf16> memory;
  Tensor tensor;

  Bf16Matrix(std::int64_t rows, std::int64_t cols, std::uint64_t seed, std::int64_t gap = 3)
      : memory(static_cast<std::size_t>(rows * (cols + gap)), bf16{0xFFFF}),
        tensor(make_tensor(memory.data(), rows, cols, cols + gap)) {
    Rng rng(seed);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) tensor.row<bf16>(r)[c] = to_bf16(rng.normal());
  }
  double at(std::int64_t r, std::int64_t c) const {
    return static_cast<double>(to_f32(tensor.row<bf16>(r)[c]));
  }
};

// Compares c with before + a^T b in f64. Tolerance: sums of R products of normal numbers in f32.
void expect_outer_sum(const Bf16Matrix& a, const Bf16Matrix& b, const Tensor& c, double before) {
  for (std::int64_t m = 0; m < c.rows; ++m)
    for (std::int64_t n = 0; n < c.cols; ++n) {
      double sum = before;
      for (std::int64_t r = 0; r < a.tensor.rows; ++r) sum += a.at(r, m) * b.at(r, n);
      ASSERT_NEAR(static_cast<double>(c.row<float>(m)[n]), sum, 1e-3) << m << ", " << n;
    }
}

TEST(Bf16Products, WeightGradientsMatchF64AtEverySize) {
  const Context context;
  for (auto [R, M, N] : {std::array<std::int64_t, 3>{128, 128, 128},
                         {129, 129, 145},
                         {300, 131, 200},
                         {1025, 136, 177},
                         {4099, 128, 129},
                         {1, 130, 150},
                         {200, 40, 40}}) {
    SCOPED_TRACE(fmt::format("{} rows into {} x {}", R, M, N));
    const Bf16Matrix a(R, M, 1), b(R, N, 2);
    std::vector<float> memory(static_cast<std::size_t>(M * (N + 5)), 0.5f);
    const Tensor c = make_tensor(memory.data(), M, N, N + 5);
    context.state<cpu::Gemm>().run(cpu::transposed(a.tensor), {b.tensor}, c, true);
    expect_outer_sum(a, b, c, 0.5);
    for (std::int64_t m = 0; m < M; ++m)  // nothing is written between rows
      for (std::int64_t n = N; n < N + 5; ++n) ASSERT_EQ(c.row<float>(m)[n], 0.5f);
  }
}

TEST(Bf16Products, WeightGradientsHaveTheSameBitsForAnyThreadCount) {
  const std::int64_t R = 1100, M = 150, N = 260;
  if (!cpu::uses_outer_sum(R, M, N)) GTEST_SKIP() << "this processor does not multiply bf16 in pairs";
  const Bf16Matrix a(R, M, 1), b(R, N, 2);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 3}) {
    const Threads scope(threads);
    const Context context;
    results.emplace_back(static_cast<std::size_t>(M * N), 0.0f);
    context.state<cpu::Gemm>().run(cpu::transposed(a.tensor), {b.tensor},
                                   make_tensor(results.back().data(), M, N), true);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

// From 2048 rows on, b is packed.
TEST(Bf16Products, PackedFactorsGiveTheSameProduct) {
  const Context context;
  const std::int64_t K = 70, N = 45;
  const Bf16Matrix b(K, N, 2);
  for (const std::int64_t M : {100, 2048, 2063}) {
    SCOPED_TRACE(M);
    const Bf16Matrix a(M, K, 1);
    std::vector<float> memory(static_cast<std::size_t>(M * N));
    const Tensor c = make_tensor(memory.data(), M, N);
    context.state<cpu::Gemm>().run({a.tensor}, {b.tensor}, c, false);
    for (const std::int64_t m : {std::int64_t{0}, M / 2, M - 1})
      for (std::int64_t n = 0; n < N; ++n) {
        double sum = 0;
        for (std::int64_t k = 0; k < K; ++k) sum += a.at(m, k) * b.at(k, n);
        ASSERT_NEAR(static_cast<double>(c.row<float>(m)[n]), sum, 1e-4) << m << ", " << n;
      }
  }
}

OpCase attention_case(std::int64_t N, std::int32_t H, std::int32_t K, std::int64_t D, Integers first,
                      std::int32_t window = 0, float softcap = 0) {
  Fill fill(&op::kAttention);
  OpCase made{
      fmt::format("N={} H={} K={} D={} window={} softcap={}", N, H, K, D, window, softcap),
      {fill.rows(N, H * D), fill.rows(N, K * D), fill.rows(N, K * D), column(first)},
      AttentionAttributes{H, K, static_cast<float>(1 / std::sqrt(static_cast<double>(D))), softcap, window}};
  made.d_out = {fill.rows(N, H * D), absent()};
  for (Values* values : {&made.in[0], &made.in[1], &made.in[2], &made.d_out[0]})
    for (double& number : values->numbers)
      number = static_cast<double>(to_f32(to_bf16(static_cast<float>(number))));
  return made;
}

Integers one_document(std::int64_t N) {
  return Integers(static_cast<std::size_t>(N), 0);
}

void expect_attention_matches_reference(const OpCase& op_case) {
  SCOPED_TRACE(op_case.name);
  const OpDefinition& def = op::kAttention;
  Conditions cpu = kCpuBf16;
  cpu.layout = {3, 1};
  expect_close(def, op_case, DType::bf16, run_op(def, op_case, kReference), run_op(def, op_case, cpu));
}

TEST(Bf16Attention, MatchesReferenceAtEveryHeadSizeAndTileBoundary) {
  for (const std::int64_t D : {16, 32, 48, 80, 96, 128})
    expect_attention_matches_reference(attention_case(70, 2, 1, D, one_document(70)));
  for (const std::int64_t N : {1, 2, 63, 64, 65, 127, 128, 129, 193})
    expect_attention_matches_reference(attention_case(N, 2, 2, 32, one_document(N)));
}

// Longer than the window that backward sums in f32: two windows of keys.
TEST(Bf16Attention, MatchesReferenceForDocumentsLongerThanAWindow) {
  expect_attention_matches_reference(attention_case(1100, 2, 1, 16, one_document(1100)));
  Integers two(1200, 100);
  std::fill_n(two.begin(), 100, 0);
  expect_attention_matches_reference(attention_case(1200, 1, 1, 16, two));
}

// Windows that end at the border of a tile and on both sides of it, shorter than half a tile, and
// longer than a document.
TEST(Bf16Attention, MatchesReferenceForEveryWindow) {
  Fill fill(&op::kAttention);
  for (const std::int32_t window : {2, 20, 63, 64, 65, 127, 128, 129, 200, 400})
    for (const Integers& first : {one_document(330), fill.first_rows(330, 100)})
      expect_attention_matches_reference(attention_case(330, 2, 1, 16, first, window));
  expect_attention_matches_reference(attention_case(330, 4, 2, 32, one_document(330), 70, 1.5f));
  expect_attention_matches_reference(attention_case(130, 2, 2, 48, fill.first_rows(130, 60), 0, 0.75f));
}

// Backward sums dk and dv of 1,024 rows at a time, and dq of a query over all of these.
TEST(Bf16Attention, MatchesReferenceForWindowsInLongDocuments) {
  for (const std::int32_t window : {100, 1000, 1030})
    expect_attention_matches_reference(attention_case(1200, 1, 1, 16, one_document(1200), window));
  Integers two(1300, 100);
  std::fill_n(two.begin(), 100, 0);
  expect_attention_matches_reference(attention_case(1300, 2, 1, 16, two, 64));
}

TEST(Bf16Attention, HasTheSameBitsForAnyThreadCount) {
  Fill fill(&op::kAttention);
  const OpDefinition& def = op::kAttention;
  for (const std::int32_t window : {0, 70}) {
    const OpCase op_case = attention_case(400, 4, 2, 32, fill.first_rows(400, 90), window);
    const Results two = [&] {
      const Threads threads(2);
      return run_op(def, op_case, kCpuBf16);
    }();
    for (const int count : {1, 3}) {
      const Threads threads(count);
      expect_same_bits(two, run_op(def, op_case, kCpuBf16));
    }
  }
}

TEST(Bf16Attention, RunsWithoutHardwareForBf16) {
  if (cpu_level() < CpuLevel::avx512_bf16) GTEST_SKIP() << "the other tests cover this CPU level";
  const OpCase op_case = attention_case(150, 2, 1, 64, one_document(150));
  const OpDefinition& def = op::kAttention;
  const Results in_pairs = run_op(def, op_case, kCpuBf16);
  const CpuLevelScope lower(CpuLevel::avx512);
  const Results by_highway = run_op(def, op_case, kCpuBf16);
  expect_attention_matches_reference(op_case);
  EXPECT_NE(in_pairs[0].numbers, by_highway[0].numbers);  // otherwise the level had no effect
}

}  // namespace
}  // namespace thimble
