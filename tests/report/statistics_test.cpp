#include "report/statistics.h"

#include <cmath>
#include <numbers>

namespace thimble {
namespace {

constexpr double kPi = std::numbers::pi;

// 2 * (1 - F(t)) from closed forms (Abramowitz and Stegun 26.7.3-4), independent of the tested
// code.
double two_sided_exactly(double t, int degrees) {
  const double angle = std::atan(t / std::sqrt(degrees)), cosine2 = std::cos(angle) * std::cos(angle);
  double sum = 0, term = 1;
  if (degrees % 2 == 0) {
    for (int k = 0; k < degrees / 2; ++k) {
      sum += term;
      term *= cosine2 * (2 * k + 1) / (2 * k + 2);
    }
    return 1 - std::sin(angle) * sum;
  }
  term = std::cos(angle);
  for (int k = 0; k < (degrees - 1) / 2; ++k) {
    sum += term;
    term *= cosine2 * (2 * k + 2) / (2 * k + 3);
  }
  return 1 - 2 / kPi * (angle + std::sin(angle) * sum);
}

TEST(IncompleteBeta, AgreesWithPolynomialsAndArcsines) {
  for (const double x : {0.0, 1e-9, 0.1, 0.3, 0.5, 0.77, 0.999, 1.0}) {
    EXPECT_NEAR(incomplete_beta(1, 1, x), x, 1e-14);
    EXPECT_NEAR(incomplete_beta(3, 1, x), x * x * x, 1e-14);
    EXPECT_NEAR(incomplete_beta(1, 4, x), 1 - std::pow(1 - x, 4), 1e-14);
    EXPECT_NEAR(incomplete_beta(2, 3, x), x * x * (6 - 8 * x + 3 * x * x), 1e-14);
    EXPECT_NEAR(incomplete_beta(0.5, 0.5, x), 2 / kPi * std::asin(std::sqrt(x)), 1e-13);
    EXPECT_NEAR(incomplete_beta(7.3, 2.9, x), 1 - incomplete_beta(2.9, 7.3, 1 - x), 1e-13);
  }
}

TEST(StudentT, AgreesWithClosedForms) {
  for (int degrees = 1; degrees <= 60; ++degrees)
    for (const double t : {0.0, 0.01, 0.5, 1.0, 2.0, 3.7, 8.0})
      EXPECT_NEAR(student_t_two_sided(t, degrees), two_sided_exactly(t, degrees), 1e-12)
          << t << " " << degrees;
  EXPECT_EQ(student_t_two_sided(-2, 5), student_t_two_sided(2, 5));
}

// Upper critical values from published tables of Student's t, to three decimals.
TEST(StudentT, QuantilesMatchPublishedTables) {
  struct Row {
    double degrees, at_95, at_975, at_999;
  };
  for (const Row& row :
       {Row{1, 6.314, 12.706, 318.309}, Row{2, 2.920, 4.303, 22.327}, Row{5, 2.015, 2.571, 5.893},
        Row{10, 1.812, 2.228, 4.144}, Row{30, 1.697, 2.042, 3.385}, Row{100, 1.660, 1.984, 3.174}}) {
    EXPECT_NEAR(student_t_quantile(0.95, row.degrees), row.at_95, 6e-4);
    EXPECT_NEAR(student_t_quantile(0.975, row.degrees), row.at_975, 6e-4);
    EXPECT_NEAR(student_t_quantile(0.999, row.degrees), row.at_999, 6e-4);
    EXPECT_NEAR(student_t_quantile(0.025, row.degrees), -student_t_quantile(0.975, row.degrees), 1e-12);
  }
  EXPECT_NEAR(student_t_quantile(0.975, 2), 0.95 / std::sqrt(2 * 0.975 * 0.025), 1e-9) << "closed form";
}

// Student's sleep data of 1908, as R prints t.test(extra ~ group, data = sleep): t = -1.8608, df =
// 17.776, p-value = 0.07939, 95 percent confidence interval -3.3654832 0.2054832.
TEST(Welch, MatchesRForTheSleepData) {
  const std::vector<double> a = {0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0};
  const std::vector<double> b = {1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4};
  const auto test = welch_test(b, a);  // R subtracts the second group
  ASSERT_TRUE(test);
  EXPECT_NEAR(test->t, -1.8608, 5e-5);
  EXPECT_NEAR(test->degrees, 17.776, 5e-4);
  EXPECT_NEAR(test->p, 0.07939, 5e-6);
  EXPECT_NEAR(test->low, -3.3654832, 5e-8);
  EXPECT_NEAR(test->high, 0.2054832, 5e-8);
  EXPECT_NEAR(test->difference, -1.58, 1e-12);
}

TEST(Welch, NeedsTwoValuesPerGroupAndHandlesZeroVariance) {
  const std::vector<double> one = {1}, same = {2, 2}, other = {3, 3, 3};
  EXPECT_FALSE(welch_test(one, same));
  EXPECT_FALSE(welch_test(same, one));
  EXPECT_EQ(welch_test(same, other)->p, 0);
  EXPECT_EQ(welch_test(same, same)->p, 1);
  const std::vector<double> varied = {2, 4};
  EXPECT_EQ(welch_test(same, varied)->degrees, 1);
}

TEST(Moments, UseTheSampleVariance) {
  const std::vector<double> values = {2, 4, 4, 4, 5, 5, 7, 9};
  EXPECT_EQ(moments_of(values).mean, 5);
  EXPECT_NEAR(moments_of(values).deviation, std::sqrt(32.0 / 7), 1e-15);
  EXPECT_EQ(moments_of({}).n, 0u);
}

TEST(Holm, MultipliesTheSmallestByTheNumberOfTests) {
  const std::vector<double> adjusted = holm_adjusted(std::vector{0.01, 0.04, 0.03, 0.005});
  const std::vector<double> expected = {0.03, 0.06, 0.06, 0.02};
  ASSERT_EQ(adjusted.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(adjusted[i], expected[i], 1e-15) << i;
  EXPECT_EQ(holm_adjusted(std::vector{0.7, 0.9}), (std::vector<double>{1, 1}));
  EXPECT_EQ(holm_adjusted({}), std::vector<double>{});
}

// The expected numbers below are from a separate program in Python, which solves the normal
// equations and has its own Philox.
TEST(SeedNoise, IsTheResidualOfATableOfSettingsAndSeeds) {
  const std::vector<std::vector<double>> full = {
      {1.4159, 1.4029, 1.4157}, {1.4097, 1.4113, 1.4127}, {1.3420, 1.3421, 1.3834}, {1.3200, 1.3104, 1.3176}};
  const auto noise = seed_noise(full);
  ASSERT_TRUE(noise);
  EXPECT_NEAR(noise->deviation, 0.011515653597507, 1e-12);
  EXPECT_EQ(noise->degrees, 6);
}

TEST(SeedNoise, TakesMissingResultsIntoAccount) {
  const std::vector<std::vector<double>> missing = {{1.4159, 1.4029, 1.4157, 1.42},
                                                    {1.4097, NAN, 1.4127, NAN},
                                                    {NAN, 1.3421, 1.3834, 1.35},
                                                    {1.3200, 1.3104}};
  const auto noise = seed_noise(missing);
  ASSERT_TRUE(noise);
  EXPECT_NEAR(noise->deviation, 0.010347426799901, 1e-10);
  EXPECT_EQ(noise->degrees, 4);
  EXPECT_FALSE(seed_noise(std::vector<std::vector<double>>{{1, 2, 3}})) << "one setting";
  EXPECT_FALSE(seed_noise(std::vector<std::vector<double>>{{1}, {2}, {3}})) << "one seed";
  EXPECT_FALSE(seed_noise(std::vector<std::vector<double>>{{1, NAN}, {NAN, 2}})) << "no common seed";
  EXPECT_FALSE(seed_noise({}));
}

TEST(SeedNoise, GivesThePairedTestForTwoSettings) {
  const std::vector<std::vector<double>> two = {{1.0, 1.1, 0.95}, {0.9, 1.02, 0.93}};
  const auto noise = seed_noise(two);
  ASSERT_TRUE(noise);
  const std::vector<ErrorSource> source = {seed_error(*noise, 3)};
  const DifferenceTest test = difference_test(-0.2 / 3, source);
  EXPECT_NEAR(test.t, -2.77350098112614, 1e-9);
  EXPECT_NEAR(test.p, 0.109129193625252, 1e-9);
  EXPECT_LT(test.interval_95.low, -0.2 / 3);
  EXPECT_GT(test.interval_95.high, 0) << "p is above 0.05";
}

TEST(DifferenceTest, AddsTheSquaresOfItsErrors) {
  const std::vector<ErrorSource> sources = {{.error = 0.02, .degrees = 6}, {.error = 0.01, .degrees = 39}};
  const DifferenceTest test = difference_test(0.05, sources);
  EXPECT_NEAR(test.t, 2.23606797749979, 1e-13);
  EXPECT_NEAR(test.degrees, 9.28571428571428, 1e-12);
  EXPECT_NEAR(test.p, 0.0512991925452, 1e-11);
  EXPECT_NEAR(test.interval_95.high, 0.05 + 0.0503471106523, 1e-9);
  EXPECT_NEAR(test.interval_95.low, 0.05 - 0.0503471106523, 1e-9);
  const std::vector<ErrorSource> none = {{.error = 0, .degrees = 2}};
  EXPECT_EQ(difference_test(0, none).p, 1);
  EXPECT_EQ(difference_test(0.1, none).p, 0);
}

std::vector<PairedPart> paired_parts() {
  std::vector<PairedPart> parts;
  for (int i = 0; i < 24; ++i) {
    const double a = 100 + 7 * ((i * 37) % 11), size = 50 + (i * 13) % 17;
    parts.push_back({.a = a, .a_size = size, .b = a - 3 + (i * 29) % 10, .b_size = size});
  }
  return parts;
}

TEST(PairedBootstrap, GivesTheFiguresOfAnIndependentProgram) {
  const auto result = paired_bootstrap(paired_parts());
  ASSERT_TRUE(result);
  EXPECT_NEAR(result->difference, 0.0302593659942363, 1e-13);
  EXPECT_NEAR(result->interval_95.low, 0.00867678958785234, 1e-13);
  EXPECT_NEAR(result->interval_95.high, 0.0501432664756445, 1e-13);
  EXPECT_NEAR(result->p, 0.0055994400559944, 1e-13);
  EXPECT_NEAR(result->deviation, 0.0106304510493589, 1e-13);

  std::vector<PairedPart> alike = paired_parts();
  for (std::size_t i = 0; i < alike.size(); ++i)
    alike[i].b = alike[i].a + (i % 2 == 1 ? 1 : -1) * static_cast<double>(i % 5);
  const auto undecided = paired_bootstrap(alike);
  ASSERT_TRUE(undecided);
  EXPECT_NEAR(undecided->p, 0.888911108889111, 1e-13);
  EXPECT_NEAR(undecided->interval_95.low, -0.0153961768179987, 1e-13);
}

TEST(PairedBootstrap, NeedsTwoPartsWithASize) {
  EXPECT_FALSE(paired_bootstrap({}));
  EXPECT_FALSE(paired_bootstrap(std::vector<PairedPart>{{1, 1, 2, 1}}));
  EXPECT_FALSE(paired_bootstrap(std::vector<PairedPart>{{1, 1, 2, 1}, {1, 0, 2, 1}}));
  const auto equal = paired_bootstrap(std::vector<PairedPart>{{1, 1, 1, 1}, {2, 1, 2, 1}});
  ASSERT_TRUE(equal);
  EXPECT_EQ(equal->p, 1) << "equal models";
  EXPECT_EQ(equal->difference, 0);
}

}  // namespace
}  // namespace thimble
