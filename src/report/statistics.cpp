#include "report/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/parallel.h"
#include "base/rng.h"

namespace thimble {

namespace {

constexpr double kConfidence = 0.95;

// The continued fraction of the incomplete beta function (Abramowitz and Stegun 26.5.8), evaluated
// forward with Lentz's method. Converges fast for x < (a + 1) / (a + b + 2).
double beta_fraction(double a, double b, double x) {
  constexpr int kMaxTerms = 10'000;
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
  for (int m = 1; m <= kMaxTerms; ++m) {
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
  check(a > 0 && b > 0 && x >= 0 && x <= 1, "[statistics] incomplete beta of a {}, b {}, x {} is undefined",
        a, b, x);
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
  if (ea + eb == 0) {  // no variation between seeds: any difference is significant
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

std::vector<double> holm_adjusted(std::span<const double> p) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return p[i]; });
  std::vector<double> adjusted(p.size());
  double largest = 0;
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    largest = std::max(largest, std::min(1.0, static_cast<double>(p.size() - rank) * p[order[rank]]));
    adjusted[order[rank]] = largest;
  }
  return adjusted;
}

namespace {

struct Cell {
  std::size_t row, column;
  double value;
};

// The number of groups of rows and columns that cells connect; each has one effect that the others
// determine.
std::size_t connected_groups(std::span<const Cell> cells, std::size_t rows, std::size_t columns) {
  std::vector<std::size_t> parent(rows + columns);
  std::iota(parent.begin(), parent.end(), std::size_t{0});
  const auto root = [&](std::size_t i) {
    while (parent[i] != i) i = parent[i];
    return i;
  };
  for (const Cell& cell : cells) parent[root(cell.row)] = root(rows + cell.column);
  std::vector<std::size_t> roots;
  for (const Cell& cell : cells) roots.push_back(root(cell.row));
  std::ranges::sort(roots);
  return static_cast<std::size_t>(std::unique(roots.begin(), roots.end()) - roots.begin());
}

// Sets each effect to the mean of what its cells leave for it; returns the largest change.
double fit(std::vector<double>& effects, std::span<const Cell> cells, std::size_t Cell::*of,
           const std::vector<double>& others, std::size_t Cell::*of_others) {
  std::vector<double> sums(effects.size()), counts(effects.size());
  for (const Cell& cell : cells) {
    sums[cell.*of] += cell.value - others[cell.*of_others];
    counts[cell.*of] += 1;
  }
  double change = 0;
  for (std::size_t i = 0; i < effects.size(); ++i) {
    if (counts[i] == 0) continue;
    change = std::max(change, std::abs(sums[i] / counts[i] - effects[i]));
    effects[i] = sums[i] / counts[i];
  }
  return change;
}

std::size_t count_used(std::span<const Cell> cells, std::size_t Cell::*of, std::size_t most) {
  std::vector<bool> used(most);
  for (const Cell& cell : cells) used[cell.*of] = true;
  return static_cast<std::size_t>(std::ranges::count(used, true));
}

}  // namespace

std::optional<SeedNoise> seed_noise(std::span<const std::vector<double>> table) {
  std::vector<Cell> cells;
  std::size_t columns = 0;
  for (std::size_t row = 0; row < table.size(); ++row)
    for (std::size_t column = 0; column < table[row].size(); ++column) {
      columns = std::max(columns, column + 1);
      if (std::isfinite(table[row][column])) cells.push_back({row, column, table[row][column]});
    }
  const auto effects = static_cast<double>(count_used(cells, &Cell::row, table.size()) +
                                           count_used(cells, &Cell::column, columns) -
                                           connected_groups(cells, table.size(), columns));
  SeedNoise noise{.degrees = static_cast<double>(cells.size()) - effects};
  if (noise.degrees < 1) return std::nullopt;
  constexpr int kMostRounds = 10'000;  // a complete table needs two
  constexpr double kEnough = 1e-14;
  std::vector<double> rows(table.size()), of_columns(columns);
  for (int round = 0; round < kMostRounds; ++round) {
    const double change = std::max(fit(rows, cells, &Cell::row, of_columns, &Cell::column),
                                   fit(of_columns, cells, &Cell::column, rows, &Cell::row));
    if (change <= kEnough) break;
  }
  double squares = 0;
  for (const Cell& cell : cells)
    squares += std::pow(cell.value - rows[cell.row] - of_columns[cell.column], 2);
  noise.deviation = std::sqrt(squares / noise.degrees);
  return noise;
}

DifferenceTest difference_test(double difference, std::span<const ErrorSource> sources) {
  double squares = 0, spread = 0;
  for (const ErrorSource& source : sources) {
    const double square = source.error * source.error;
    squares += square;
    spread += square * square / source.degrees;
  }
  DifferenceTest test{.interval_95 = {difference, difference}};
  if (spread == 0) {  // no error: any difference is significant
    test.t = difference == 0 ? 0 : std::copysign(std::numeric_limits<double>::infinity(), difference);
    test.p = difference == 0 ? 1 : 0;
    return test;
  }
  test.t = difference / std::sqrt(squares);
  test.degrees = squares * squares / spread;
  test.p = student_t_two_sided(test.t, test.degrees);
  const double half = student_t_quantile((1 + kConfidence) / 2, test.degrees) * std::sqrt(squares);
  test.interval_95 = {difference - half, difference + half};
  return test;
}

ErrorSource seed_error(const SeedNoise& noise, std::size_t n) {
  return {.error = noise.deviation * std::sqrt(2 / static_cast<double>(n)), .degrees = noise.degrees};
}

namespace {

constexpr std::uint64_t kBootstrapSeed = 20'261'119;

double difference_of(const PairedPart& sums) {
  return sums.b / sums.b_size - sums.a / sums.a_size;
}

void add_to(PairedPart& sums, const PairedPart& part) {
  sums.a += part.a;
  sums.a_size += part.a_size;
  sums.b += part.b;
  sums.b_size += part.b_size;
}

double resampled(std::span<const PairedPart> parts, std::uint64_t resample) {
  PairedPart sums;
  std::array<std::uint32_t, 4> words{};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i % words.size() == 0) words = philox(kBootstrapSeed, resample, i / words.size());
    add_to(sums,
           parts[static_cast<std::size_t>(words[i % words.size()] * std::uint64_t{parts.size()} >> 32)]);
  }
  return difference_of(sums);
}

// Interpolates between the two nearest values.
double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

std::optional<PairedBootstrap> paired_bootstrap(std::span<const PairedPart> parts) {
  if (parts.size() < 2) return std::nullopt;
  PairedPart sums;
  for (const PairedPart& part : parts) {
    if (!(part.a_size > 0 && part.b_size > 0)) return std::nullopt;
    add_to(sums, part);
  }
  PairedBootstrap result{.difference = difference_of(sums)};
  std::vector<double> differences(kResamples);
  parallel_tasks(kResamples, [&](std::int64_t i) {
    differences[static_cast<std::size_t>(i)] = resampled(parts, static_cast<std::uint64_t>(i));
  });
  std::ranges::sort(differences);
  result.deviation = moments_of(differences).deviation;
  result.interval_95 = {quantile(differences, (1 - kConfidence) / 2),
                        quantile(differences, (1 + kConfidence) / 2)};
  const auto not_above = std::ranges::count_if(differences, [](double d) { return d <= 0; }),
             not_below = std::ranges::count_if(differences, [](double d) { return d >= 0; });
  result.p = std::min(1.0, 2 * (1 + static_cast<double>(std::min(not_above, not_below))) / (1 + kResamples));
  return result;
}

}  // namespace thimble
