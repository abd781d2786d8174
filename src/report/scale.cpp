#include "report/scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace thimble {

namespace {

constexpr double kLogFromRatio = 3;
constexpr double kAir = 0.04;
constexpr double kEqual = 1e-9;  // relative: what differs by less is rounding, not a range
constexpr double kSmallest = std::numeric_limits<double>::min(),
                 kLargest = std::numeric_limits<double>::max();

// The smallest of 1, 2, 5, 10, ... that is at least `rough`.
double round_step(double rough) {
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

std::vector<double> linear_ticks(double low, double high, int most) {
  const double step = round_step(high / most - low / most);
  std::vector<double> ticks;
  if (!std::isnormal(step)) return ticks;
  const double first = std::ceil(low / step - 1e-9);
  for (int i = 0; i <= most; ++i) {  // counted: a step below an ulp of `low` would get nowhere
    const double tick = (first + i) * step;
    if (!(tick <= high + 1e-9 * step) || (!ticks.empty() && tick <= ticks.back())) break;
    ticks.push_back(tick);
  }
  return ticks;
}

// Powers of ten, with more and more between them until there are enough.
std::vector<double> log_ticks(double low, double high, int most) {
  static const std::array<std::vector<double>, 4> kBetween = {{{1}, {1, 3}, {1, 2, 5}, {1, 1.5, 2, 3, 5, 7}}};
  std::vector<double> best;
  if (!(low >= kSmallest && high <= kLargest)) return best;
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::floor(std::log10(high)));
  for (const std::vector<double>& factors : kBetween) {
    std::vector<double> ticks;
    for (int power = first; power <= last; ++power)
      for (const double factor : factors)
        if (const double tick = factor * std::pow(10, power); tick >= low && tick <= high)
          ticks.push_back(tick);
    if (static_cast<int>(ticks.size()) <= most && ticks.size() > best.size()) best = ticks;
  }
  return best.size() >= 3 ? best : linear_ticks(low, high, most);
}

}  // namespace

double Scale::place_of(double value) const {
  // Halves and logarithms of their own: neither difference nor ratio may overflow.
  if (!logarithmic) return (value / 2 - low / 2) / (high / 2 - low / 2);
  return (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
}

std::vector<double> Scale::ticks(int most) const {
  return logarithmic ? log_ticks(low, high, most) : linear_ticks(low, high, most);
}

Scale scale_around(const std::vector<double>& values, ScaleWish wish) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double value : values)
    if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
  if (low > high) return {};
  if (wish.logarithmic && low >= kSmallest && high / kLogFromRatio > low) {
    const double air = wish.air ? std::pow(high, kAir) / std::pow(low, kAir) : 1;
    return {std::max(low / air, kSmallest), std::min(high * air, kLargest), true};
  }
  if (wish.from_zero) low = std::min(low, 0.0), high = std::max(high, 0.0);
  const double largest = std::max(std::abs(low), std::abs(high));
  if (high - low <= kEqual * largest) {
    const double room = largest == 0 ? 1 : std::max(largest * 0.1, kSmallest);
    return {low == 0 || wish.from_zero ? low : std::max(low - room, -kLargest),
            std::min(high + room, kLargest)};
  }
  const double air = wish.air ? kAir * high - kAir * low : 0;
  return {wish.from_zero && low == 0 ? 0 : std::max(low - air, -kLargest),
          wish.from_zero && high == 0 ? 0 : std::min(high + air, kLargest)};
}

std::string tick_text(double value, double step) {
  static constexpr std::array<const char*, 5> kUnits = {"", "k", "M", "G", "T"};
  if (std::abs(value) < 1e-12 * step || value == 0) return "0";
  std::size_t unit = 0;
  while (unit + 1 < kUnits.size() && std::abs(value) >= 1000 * (1 - 1e-9))
    value /= 1000, step /= 1000, ++unit;
  if (unit == 0 && std::abs(value) < 1e-4) return fmt::format("{:.0e}", value);
  const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 6);
  std::string text = fmt::format("{:.{}f}", value, digits);
  if (text.find('.') != text.npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.ends_with('.')) text.pop_back();
  }
  return text + kUnits[unit];
}

std::vector<std::string> tick_texts(const std::vector<double>& ticks) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    double step = std::abs(ticks[i]);
    if (i > 0) step = std::min(step, ticks[i] - ticks[i - 1]);
    if (i + 1 < ticks.size()) step = std::min(step == 0 ? ticks[i + 1] : step, ticks[i + 1] - ticks[i]);
    texts.push_back(tick_text(ticks[i], step == 0 ? 1 : step));
  }
  return texts;
}

}  // namespace thimble
