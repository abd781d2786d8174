#include "pack/prune.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"

namespace thimble {

namespace {

bool is_one(std::int8_t q) {
  return q == 1 || q == -1;
}

std::size_t row_width(const PackedTensor& tensor) {
  return tensor.q.size() / tensor.scales.size();
}

}  // namespace

std::int64_t prune_smallest(std::span<float> values, double fraction) {
  check(fraction >= 0 && fraction < 1, "[prune] the fraction must be in [0, 1), found {}", fraction);
  const float threshold = quantile_of_magnitudes(values, fraction);
  std::int64_t pruned = 0;
  for (float& value : values) {
    if (!(std::abs(value) < threshold)) continue;
    pruned += value != 0;
    value = 0;
  }
  return pruned;
}

CheapestFirst::CheapestFirst(std::span<const PackedTensor> tensors) {
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const PackedTensor& tensor = tensors[t];
    if (!is_quantized(tensor.storage) || tensor.q.empty()) continue;
    const std::size_t width = row_width(tensor);
    for (std::size_t row = 0; row < tensor.scales.size(); ++row) {
      const auto q = std::span(tensor.q).subspan(row * width, width);
      const auto ones = static_cast<std::int64_t>(std::ranges::count_if(q, is_one));
      if (ones > 0) rows_.push_back({tensor.scales[row], t, row, ones});
      count_ += ones;
    }
  }
  std::ranges::stable_sort(rows_, {}, &Row::scale);
}

void CheapestFirst::zero(std::int64_t count, std::span<PackedTensor> tensors) const {
  for (const Row& row : rows_) {
    if (count <= 0) return;
    PackedTensor& tensor = tensors[row.tensor];
    const std::size_t width = row_width(tensor);
    for (std::int8_t& q : std::span(tensor.q).subspan(row.row * width, width))
      if (is_one(q) && count > 0) {
        q = 0;
        --count;
      }
  }
}

namespace {

constexpr int kMaxRounds = 16;

struct Attempt {
  std::int64_t count;
  std::vector<PackedTensor> tensors;
  std::vector<CodedGroup> groups;

  double bytes() const { return static_cast<double>(coded_bytes(groups)); }
};

// The result of an attempt that did not fit.
struct TooLarge {
  std::int64_t count;
  double bytes;
};

// The count at which a straight line between the two attempts reaches the allowed size.
std::int64_t interpolated_count(const TooLarge& large, const Attempt& fitting, double room) {
  const double share = (large.bytes - room) / (large.bytes - fitting.bytes());
  return large.count + static_cast<std::int64_t>(share * static_cast<double>(fitting.count - large.count));
}

// Groups without integers are never range-coded, so any range-coded group decides.
Codec codec_of(std::span<const CodedGroup> groups) {
  const bool range = std::ranges::any_of(groups, [](const CodedGroup& g) { return g.codec == Codec::range; });
  return range ? Codec::range : groups.front().codec;
}

}  // namespace

std::int64_t prune_to_fit(const ParamTable& table, std::uint64_t max_bytes,
                          std::vector<PackedTensor>& tensors, std::vector<CodedGroup>& groups,
                          const OnCoded& on_coded) {
  if (coded_bytes(groups) <= max_bytes) return 0;
  const CheapestFirst cheapest(tensors);
  const Codec codec = codec_of(groups);
  const auto attempt = [&](std::int64_t count) {
    Attempt out{count, tensors, {}};
    cheapest.zero(count, out.tensors);
    out.groups = code_weights(table, out.tensors, codec, on_coded);
    return out;
  };
  const auto room = static_cast<double>(max_bytes);
  const std::int64_t tolerance = std::max<std::int64_t>(1, cheapest.count() / 250);
  TooLarge large{0, static_cast<double>(coded_bytes(groups))};
  Attempt best = attempt(cheapest.count());
  // The size is a nearly linear function of the count. Interpolation converges in a few rounds;
  // bisection takes over when it approaches from one side only.
  int same_side = 0;  // consecutive rounds that fitted (positive) or did not (negative)
  for (int round = 0; round < kMaxRounds && best.bytes() <= room; ++round) {
    const std::int64_t gap = best.count - large.count;
    if (gap <= tolerance) break;
    const bool one_sided = std::abs(same_side) >= 2;
    const std::int64_t count = one_sided ? large.count + gap / 2 : interpolated_count(large, best, room);
    Attempt next = attempt(std::clamp(count, large.count + 1, best.count - 1));
    const bool fits = next.bytes() <= room;
    same_side = fits ? std::max(same_side, 0) + 1 : std::min(same_side, 0) - 1;
    if (fits)
      best = std::move(next);
    else
      large = {next.count, next.bytes()};
  }
  tensors = std::move(best.tensors);
  groups = std::move(best.groups);
  return best.count;
}

}  // namespace thimble
