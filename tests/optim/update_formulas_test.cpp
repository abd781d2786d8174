// Adam, Newton-Schulz and sums: the CPU versions against the reference.
#include <cmath>
#include <random>

#include "base/parallel.h"
#include "ops/sums.h"
#include "optim/adam.h"
#include "optim/newton_schulz.h"

namespace thimble::update_formulas_test {
namespace {

std::vector<float> normals(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(Adam, MatchesTheReferenceOverSeveralSteps) {
  for (std::size_t count : {1u, 15u, 16u, 17u, 40000u}) {
    auto p = normals(count, 1), m = std::vector<float>(count), v = m;
    auto reference_p = p, reference_m = m, reference_v = v;
    for (int t = 1; t <= 5; ++t) {
      const auto g = normals(count, static_cast<unsigned>(10 + t));
      const AdamStep step{.lr = 0.01f, .decay = 0.1f, .grad_scale = 0.5f, .t = t};
      cpu::adam(step, p, g, m, v);
      ref::adam(step, reference_p, g, reference_m, reference_v);
    }
    // A few roundings of numbers around 1.
    for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(p[i], reference_p[i], 2e-6f) << count << " at " << i;
  }
}

TEST(NewtonSchulz, MatchesTheReferenceForWideTallAndSquare) {
  const Context context;
  for (auto [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{8, 8}, {4, 12}, {12, 4}, {1, 7}, {33, 64}, {64, 33}}) {
    auto ours = normals(static_cast<std::size_t>(rows * cols), 3), theirs = ours;
    std::vector<float> scratch(static_cast<std::size_t>(newton_schulz_scratch(rows, cols)));
    cpu::newton_schulz(context, make_tensor(ours.data(), rows, cols), scratch);
    ref::newton_schulz(make_tensor(theirs.data(), rows, cols));
    for (std::size_t i = 0; i < ours.size(); ++i)
      ASSERT_NEAR(ours[i], theirs[i], 2e-5f) << rows << "x" << cols << " at " << i;
  }
}

// Rounding the factors of 15 products to 8 bits moves every entry a little, but hardly changes the
// direction: checks the cosine with the f32 result, and that singular values stay in the range of
// Jordan's coefficients.
TEST(NewtonSchulz, Bf16FactorsStayClose) {
  const Context context;
  for (auto [rows, cols] : {std::pair<std::int64_t, std::int64_t>{64, 64}, {48, 160}, {160, 48}, {33, 64}}) {
    const auto start = normals(static_cast<std::size_t>(rows * cols), 3);
    auto exact = start, rounded = start;
    std::vector<float> scratch(static_cast<std::size_t>(newton_schulz_scratch(rows, cols)));
    cpu::newton_schulz(context, make_tensor(exact.data(), rows, cols), scratch);
    const std::vector<NewtonSchulzCoefficients> rounds(kNewtonSchulzSteps);
    cpu::newton_schulz(context, make_tensor(rounded.data(), rows, cols), scratch, rounds, DType::bf16);
    double dot = 0;
    for (std::size_t i = 0; i < exact.size(); ++i)
      dot += static_cast<double>(exact[i]) * static_cast<double>(rounded[i]);
    const double lengths = std::sqrt(ref::sum_of_squares(exact) * ref::sum_of_squares(rounded));
    EXPECT_GT(dot / lengths, 0.999) << rows << "x" << cols;
    EXPECT_NE(exact, rounded);
    const double mean_square = ref::sum_of_squares(rounded) / static_cast<double>(std::min(rows, cols));
    EXPECT_GT(mean_square, 0.45);
    EXPECT_LT(mean_square, 1.45);
  }
}

TEST(NewtonSchulz, CoefficientsMayDifferBetweenRounds) {
  const Context context;
  auto all_rounds = normals(20 * 30, 5), round_by_round = all_rounds;
  std::vector<float> scratch(static_cast<std::size_t>(newton_schulz_scratch(20, 30)));
  const NewtonSchulzCoefficients rounds[] = {{2, -1.5, 0.5}, {1.5, -0.5, 0}};
  cpu::newton_schulz(context, make_tensor(all_rounds.data(), 20, 30), scratch, rounds);
  ref::newton_schulz(make_tensor(round_by_round.data(), 20, 30), 1, rounds[0]);
  // The second call normalizes again.
  const double norm = std::sqrt(ref::sum_of_squares(round_by_round));
  const NewtonSchulzCoefficients second = {1.5 * norm, -0.5 * norm * norm * norm, 0};
  ref::newton_schulz(make_tensor(round_by_round.data(), 20, 30), 1, second);
  for (std::size_t i = 0; i < all_rounds.size(); ++i)
    ASSERT_NEAR(all_rounds[i], round_by_round[i], 2e-5f) << i;
}

TEST(NewtonSchulz, BringsSingularValuesNearOne) {
  auto matrix = normals(16 * 64, 4);
  const Context context;
  std::vector<float> scratch(static_cast<std::size_t>(newton_schulz_scratch(16, 64)));
  cpu::newton_schulz(context, make_tensor(matrix.data(), 16, 64), scratch);
  // |X|_F^2 is the sum of the squared singular values. With Jordan's coefficients each is in about
  // [0.7, 1.2].
  const double mean_square = ref::sum_of_squares(matrix) / 16;
  EXPECT_GT(mean_square, 0.45);
  EXPECT_LT(mean_square, 1.45);
}

TEST(Sums, BitsDoNotDependOnThreads) {
  const auto values = normals(300001, 5), weights = normals(300001, 6);
  const int threads = max_threads();
  set_threads(1);
  const double squares = cpu::sum_of_squares(values), weighted = cpu::weighted_sum(values, weights);
  set_threads(3);
  EXPECT_EQ(cpu::sum_of_squares(values), squares);
  EXPECT_EQ(cpu::weighted_sum(values, weights), weighted);
  set_threads(threads);
  EXPECT_NEAR(squares, ref::sum_of_squares(values), 1e-7);
  EXPECT_NEAR(weighted, ref::weighted_sum(values, weights), 1e-9);
}

}  // namespace
}  // namespace thimble::update_formulas_test
