// Is one group of runs better than another, or was it luck? Means, deviations and Welch's t-test.
//
//   t  = (mean b - mean a) / sqrt(va / na + vb / nb)                    v: variance of a sample, n - 1 below
//   df = (va / na + vb / nb)^2 / ((va / na)^2 / (na - 1) + (vb / nb)^2 / (nb - 1))       Welch-Satterthwaite
//   p  = P(|T| >= |t|) = I_x(df / 2, 1 / 2),  x = df / (df + t^2)       I: regularised incomplete beta function
#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace thimble {

struct SampleMoments {
  std::size_t n = 0;
  double mean = 0;
  double deviation = 0;  // of the sample; 0 for fewer than two
};
SampleMoments moments_of(std::span<const double> values);

// I_x(a, b), a and b above 0, x in [0, 1]: to about 1e-12.
double incomplete_beta(double a, double b, double x);

double student_t_two_sided(double t, double degrees);           // P(|T| >= |t|)
double student_t_quantile(double probability, double degrees);  // t with P(T <= t) = probability; in (0, 1)

struct WelchTest {
  double difference = 0;      // mean of b minus mean of a
  double low = 0, high = 0;   // 95 % confidence interval of the difference
  double t = 0, degrees = 0;  // infinite and 1 where neither group varies but they differ
  double p = 1;               // two-sided
};

// Nothing where a group has fewer than two values.
std::optional<WelchTest> welch_test(std::span<const double> a, std::span<const double> b);

}  // namespace thimble
