#include "infer/token_score.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace thimble {

namespace {

double log_sum_exp(std::span<const float> logits) {
  const float largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += static_cast<double>(std::exp(logit - largest));
  return static_cast<double>(largest) + std::log(sum);
}

}  // namespace

void check_finite(std::span<const float> logits) {
  constexpr std::uint32_t kExponent = 0x7f800000;  // all ones: infinity or no number
  bool finite = true;
  for (const float logit : logits) finite &= (std::bit_cast<std::uint32_t>(logit) & kExponent) != kExponent;
  check(finite, Hint{"the checkpoint is damaged, or its training diverged"},
        "the model's output is not finite");
}

TokenScore score_token(std::span<const float> logits, TokenId id, int top, std::int64_t allowed) {
  check_finite(logits);
  const double total = log_sum_exp(logits);
  const auto logprob = [&](TokenId of) {
    return static_cast<float>(static_cast<double>(logits[static_cast<std::size_t>(of)]) - total);
  };
  TokenScore score{.id = id, .logprob = logprob(id)};
  if (top <= 0) return score;
  std::vector<TokenId> ids(std::min(logits.size(), static_cast<std::size_t>(allowed)));
  std::iota(ids.begin(), ids.end(), 0);
  const auto count = std::min(ids.size(), static_cast<std::size_t>(top));
  std::ranges::partial_sort(ids, ids.begin() + static_cast<std::ptrdiff_t>(count), [&](TokenId a, TokenId b) {
    const float la = logits[static_cast<std::size_t>(a)], lb = logits[static_cast<std::size_t>(b)];
    return la != lb ? la > lb : a < b;
  });
  for (const TokenId likely : std::span(ids).first(count)) score.top.emplace_back(likely, logprob(likely));
  return score;
}

}  // namespace thimble
