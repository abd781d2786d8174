// Statistics of runs: is a difference more than chance?
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace thimble {

// Welch's t-test: is the difference between two groups of runs significant?
//
//   t  = (mean b - mean a) / sqrt(va / na + vb / nb)
//   df = (va / na + vb / nb)^2 / ((va / na)^2 / (na - 1) + (vb / nb)^2 / (nb - 1))
//   p  = P(|T| >= |t|) = I_x(df / 2, 1 / 2),  x = df / (df + t^2)
//
// v is the sample variance (divided by n - 1), df follows Welch-Satterthwaite, I is the regularized
// incomplete beta function.
struct SampleMoments {
  std::size_t n = 0;
  double mean = 0;
  double deviation = 0;  // sample standard deviation; 0 for n < 2
};
SampleMoments moments_of(std::span<const double> values);

// I_x(a, b) for a, b > 0 and x in [0, 1]; accurate to about 1e-12.
double incomplete_beta(double a, double b, double x);

double student_t_two_sided(double t, double degrees);  // P(|T| >= |t|)
// The t with P(T <= t) = probability, for a probability in (0, 1).
double student_t_quantile(double probability, double degrees);

struct WelchTest {
  double difference = 0;      // mean of b minus mean of a
  double low = 0, high = 0;   // 95 % confidence interval of the difference
  double t = 0, degrees = 0;  // infinity and 1 if both variances are 0 but the means differ
  double p = 1;               // two-sided
};

// Returns nullopt if a group has fewer than two values.
std::optional<WelchTest> welch_test(std::span<const double> a, std::span<const double> b);

// Holm's correction for several tests: p values that may be compared with the same limit, in the
// order given. The chance of one wrong decision among all tests then stays below that limit.
//
//   sorted p(1) <= ... <= p(m):  adjusted(i) = max over j <= i of min(1, (m - j + 1) p(j))
std::vector<double> holm_adjusted(std::span<const double> p);

struct Interval {
  double low = 0, high = 0;
};

// The noise of single runs, estimated from a table of settings (rows) and seeds (columns); NaN: no
// result. Two or three seeds of one setting are too few, so all settings share one estimate: the
// residuals of the least-squares fit  value = row effect + column effect.  For two complete rows, a
// t-test with it is the paired t-test.
struct SeedNoise {
  double deviation = 0;
  double degrees = 0;  // of freedom
};
// Returns nullopt if no degree of freedom is left.
std::optional<SeedNoise> seed_noise(std::span<const std::vector<double>> table);

// A t-test of a difference with several independent errors: accidents of seeds, of documents.
//
//   error^2 = sum e^2        degrees = error^4 / sum (e^4 / degrees of e)    (Welch-Satterthwaite)
struct ErrorSource {
  double error = 0;    // standard error of the difference
  double degrees = 0;  // of freedom
};
struct DifferenceTest {
  double t = 0, degrees = 0;  // t is infinite if there is no error
  double p = 1;               // two-sided
  Interval interval_95 = {};
};
DifferenceTest difference_test(double difference, std::span<const ErrorSource> sources);

// The error of the mean difference of two rows over the `n` seeds that both have.
ErrorSource seed_error(const SeedNoise& noise, std::size_t n);

// A part of a text, such as a document, scored by two models: sums, such as bits, and sizes, such
// as bytes.
struct PairedPart {
  double a = 0, a_size = 0;
  double b = 0, b_size = 0;
};

// The bootstrap of  sum b / sum b_size - sum a / sum a_size  over parts: would the difference hold
// on other text of this kind? The same parts give the same figures.
//
// Resample r draws part  floor(n w / 2^32)  for each of n parts, where w is the next word of the
// Philox stream r. The interval reaches from the 2.5 % to the 97.5 % quantile of the resampled
// differences D;  p = min(1, 2 (1 + min(#{D <= 0}, #{D >= 0})) / (1 + resamples)).
struct PairedBootstrap {
  double difference = 0, p = 1;
  double deviation = 0;  // standard deviation of the resampled differences: the error
  Interval interval_95 = {};
};
inline constexpr int kResamples = 10'000;
// Returns nullopt for fewer than two parts or if a size is not above 0.
std::optional<PairedBootstrap> paired_bootstrap(std::span<const PairedPart> parts);

}  // namespace thimble
