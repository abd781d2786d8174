#include "report/statistics.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace thimble {

namespace {

constexpr double kConfidence = 0.95;

// The continued fraction of the incomplete beta function (Abramowitz and Stegun 26.5.8), from its front by Lentz's
// method: converges fast for x < (a + 1) / (a + b + 2).
double beta_fraction(double a, double b, double x) {
  constexpr int kMostTerms = 10'000;
  constexpr double kTiny = 1e-300, kEnough = 1e-16;
  double c = 1, d = 1 - (a + b) * x / (a + 1);
  d = 1 / (std::abs(d) < kTiny ? kTiny : d);
  double fraction = d;
  const auto take = [&](double numerator) {
    d = 1 + numerator * d;
    d = 1 / (std::abs(d) < kTiny ? kTiny : d);
    c = 1 + numerator / c;
    if (std::abs(c) < kTiny) c = kTiny;
    fraction *= c * d;
    return c * d;
  };
  for (int m = 1; m <= kMostTerms; ++m) {
    take(m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)));
    if (std::abs(take(-(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))) - 1) < kEnough) break;
  }
  return fraction;
}

}  // namespace

SampleMoments moments_of(std::span<const double> values) {
  SampleMoments moments{.n = values.size()};
  if (values.empty()) return moments;
  for (const double value : values) moments.mean += value / static_cast<double>(values.size());
  if (values.size() < 2) return moments;
  double squares = 0;
  for (const double value : values) squares += (value - moments.mean) * (value - moments.mean);
  moments.deviation = std::sqrt(squares / static_cast<double>(values.size() - 1));
  return moments;
}

double incomplete_beta(double a, double b, double x) {
  check(a > 0 && b > 0 && x >= 0 && x <= 1, "[statistics] incomplete beta of a {}, b {}, x {}", a, b, x);
  if (x == 0 || x == 1) return x;
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x));
  return x < (a + 1) / (a + b + 2) ? front * beta_fraction(a, b, x) / a
                                   : 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double student_t_two_sided(double t, double degrees) {
  if (std::isinf(t)) return 0;
  return incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t));
}

double student_t_quantile(double probability, double degrees) {
  check(probability > 0 && probability < 1 && degrees > 0, "[statistics] quantile {} of {} degrees",
        probability, degrees);
  if (probability < 0.5) return -student_t_quantile(1 - probability, degrees);
  const auto above = [&](double t) { return student_t_two_sided(t, degrees) / 2 <= 1 - probability; };
  double low = 0, high = 1;
  while (!above(high)) low = high, high *= 2;
  for (int i = 0; i < 200 && high - low > 1e-15 * high; ++i) {
    const double middle = (low + high) / 2;
    (above(middle) ? high : low) = middle;
  }
  return (low + high) / 2;
}

std::optional<WelchTest> welch_test(std::span<const double> a, std::span<const double> b) {
  if (a.size() < 2 || b.size() < 2) return std::nullopt;
  const SampleMoments ma = moments_of(a), mb = moments_of(b);
  const auto na = static_cast<double>(ma.n), nb = static_cast<double>(mb.n);
  const double ea = ma.deviation * ma.deviation / na, eb = mb.deviation * mb.deviation / nb;
  WelchTest test{.difference = mb.mean - ma.mean};
  test.low = test.high = test.difference;
  if (ea + eb == 0) {  // seeds that change nothing: any difference is one
    test.degrees = 1;
    test.t =
        test.difference == 0 ? 0 : std::copysign(std::numeric_limits<double>::infinity(), test.difference);
    test.p = test.difference == 0 ? 1 : 0;
    return test;
  }
  const double error = std::sqrt(ea + eb);
  test.t = test.difference / error;
  test.degrees = (ea + eb) * (ea + eb) / (ea * ea / (na - 1) + eb * eb / (nb - 1));
  test.p = student_t_two_sided(test.t, test.degrees);
  const double half = student_t_quantile((1 + kConfidence) / 2, test.degrees) * error;
  test.low = test.difference - half;
  test.high = test.difference + half;
  return test;
}

}  // namespace thimble
