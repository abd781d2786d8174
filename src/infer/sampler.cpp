#include "infer/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace thimble {

std::int32_t Sampler::sample(std::span<const float> logits, std::int64_t allowed) {
  logits = logits.first(std::min(logits.size(), static_cast<std::size_t>(allowed)));
  check(std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); }),
        Hint{"the checkpoint is damaged, or its training diverged"}, "the model's output is not finite");
  const auto best = std::ranges::max_element(logits);
  if (options_.temperature == 0) return static_cast<std::int32_t>(best - logits.begin());

  candidates_.clear();
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double weight =
        std::exp(static_cast<double>(logits[i] - *best) / static_cast<double>(options_.temperature));
    candidates_.push_back({static_cast<std::int32_t>(i), logits[i], weight});
  }
  if (options_.top_k > 0 || options_.top_p < 1) keep_likeliest();
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  double draw = rng_.uniform_double() * total;
  for (const Candidate& candidate : candidates_) {
    draw -= candidate.weight;
    if (draw < 0) return candidate.id;
  }
  return candidates_.back().id;
}

void Sampler::keep_likeliest() {
  std::ranges::stable_sort(candidates_,
                           [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
  if (options_.top_k > 0 && static_cast<std::size_t>(options_.top_k) < candidates_.size())
    candidates_.resize(static_cast<std::size_t>(options_.top_k));
  if (options_.top_p >= 1) return;
  double total = 0, reached = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  std::size_t kept = 0;
  while (kept < candidates_.size() && reached < static_cast<double>(options_.top_p) * total)
    reached += candidates_[kept++].weight;
  candidates_.resize(std::max<std::size_t>(kept, 1));
}

}  // namespace thimble
