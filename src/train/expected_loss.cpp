#include "train/expected_loss.h"

#include <algorithm>
#include <cmath>

namespace thimble {

namespace {

// Millions of parameters and of bytes.
constexpr double kFloor = 0.7085;
constexpr double kSize = 0.2371, kSizePower = 0.332;
constexpr double kText = 1.1703, kTextPower = 0.1379;
constexpr double kRepeats = 1.14;
constexpr double kScale = 0.454, kUsualDifficulty = 2.2, kDifficultyPower = 1.05;
// Of the loss. The constants come from texts of 1 to 45 MB; of a small one they were 20 % too high.
constexpr double kRange = 0.06, kWideRange = 0.12, kSmallTextRange = 0.25;
constexpr double kSmallText = 0.5e6, kLargeText = 3e6;

double range_of(const LossFacts& facts) {
  if (facts.different_bytes < kSmallText) return kSmallTextRange;
  return facts.is_estimated || facts.different_bytes > kLargeText ? kWideRange : kRange;
}

}  // namespace

double effective_bytes(double bytes_read, double different_bytes) {
  if (different_bytes <= 0 || bytes_read <= different_bytes) return bytes_read;
  const double repeats = bytes_read / different_bytes - 1;
  return different_bytes * (1 + kRepeats * (1 - std::exp(-repeats / kRepeats)));
}

ExpectedLoss expected_loss(const LossFacts& facts) {
  if (facts.difficulty <= 0 || facts.parameters <= 0) return {};
  const double text = std::max(1.0, effective_bytes(facts.bytes_read, facts.different_bytes));
  const double shape = kFloor + kSize / std::pow(facts.parameters / 1e6, kSizePower) +
                       kText / std::pow(text / 1e6, kTextPower);
  const double height =
      kScale * kUsualDifficulty * std::pow(facts.difficulty / kUsualDifficulty, kDifficultyPower);
  const double bits = std::min(8.0, height * shape);
  const double range = range_of(facts);
  return {.bits_per_byte = bits, .low = bits * (1 - range), .high = std::min(8.0, bits * (1 + range))};
}

}  // namespace thimble
