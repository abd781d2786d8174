#include "infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"
#include "base/rng.h"
#include "infer/constraint.h"
#include "infer/request.h"

namespace thimble {

namespace {

constexpr float kRemoved = -std::numeric_limits<float>::infinity();
constexpr double kMaxBias = 100, kLargest = 1000, kMinRepetition = 0.01;
constexpr std::size_t kFirstSorted = 64;  // candidates that top-p sorts in its first pass

struct Range {
  std::string_view name;
  double least, most;
};
constexpr Range kRanges[] = {{"temperature", 0, kLargest},
                             {"top_p", 0, 1},
                             {"min_p", 0, 1},
                             {"repetition_penalty", kMinRepetition, kLargest},
                             {"frequency_penalty", -kLargest, kLargest},
                             {"presence_penalty", -kLargest, kLargest},
                             {"logit_bias", -kMaxBias, kMaxBias}};

// `Number`: a float is written with the digits of a float.
template <class Number>
void check_range(std::string_view name, Number value) {
  const Range& range = *std::ranges::find(kRanges, name, &Range::name);
  check(value >= static_cast<Number>(range.least), Field{name}, "{} must be >= {}, got {}", name, range.least,
        value);
  check(value <= static_cast<Number>(range.most), Field{name}, "{} must be <= {}, got {}", name, range.most,
        value);
}

}  // namespace

void check_sampling_value(std::string_view name, double value) {
  check_range(name, value);
}

void check_sampling(const SamplingOptions& options, std::int64_t vocab_size) {
  check_range("temperature", options.temperature);
  check(options.top_k >= 0, Field{"top_k"}, "top_k must be >= 0, got {}", options.top_k);
  check_range("top_p", options.top_p);
  check_range("min_p", options.min_p);
  check_range("repetition_penalty", options.repetition_penalty);
  check(options.repeat_last_n >= -1, Field{"repeat_last_n"}, "repeat_last_n must be >= -1, got {}",
        options.repeat_last_n);
  check_range("frequency_penalty", options.frequency_penalty);
  check_range("presence_penalty", options.presence_penalty);
  const auto check_id = [&](std::string_view name, TokenId id) {
    check(id >= 0 && id < vocab_size, Field{name}, "{}: the vocabulary has {} tokens, got id {}", name,
          vocab_size, id);
  };
  for (const auto& [id, bias] : options.logit_bias) {
    check_id("logit_bias", id);
    check_range("logit_bias", bias);
  }
  for (const TokenId id : options.suppressed) check_id("suppressed", id);
}

std::uint64_t random_seed() {
  std::random_device entropy;
  return entropy();
}

Sampler::Sampler(SamplingOptions options, std::int64_t allowed, std::span<const TokenId> prompt)
    : options_(std::move(options)),
      allowed_(static_cast<std::size_t>(allowed)),
      history_(prompt.begin(), prompt.end()) {}

void AllowedTokens::keep(std::span<float> logits) const {
  std::vector<std::pair<std::size_t, float>> kept;
  for (const TokenId id : ends) {
    const auto at = static_cast<std::size_t>(id);
    if (at < logits.size()) kept.emplace_back(at, logits[at]);
  }
  const std::span<const std::uint64_t> words = mask.words();
  for (std::size_t begin = 0; begin < logits.size(); begin += 64) {
    const std::uint64_t word = begin / 64 < words.size() ? words[begin / 64] : 0;
    const std::size_t count = std::min<std::size_t>(64, logits.size() - begin);
    if (word == ~std::uint64_t{0}) continue;
    for (std::size_t i = 0; i < count; ++i)
      if ((word >> i & 1) == 0) logits[begin + i] = kRemoved;
  }
  for (const auto& [at, logit] : kept) logits[at] = logit;
}

TokenId Sampler::sample(std::span<const float> logits, std::span<const TokenId> banned,
                        const AllowedTokens* allowed) {
  logits = logits.first(std::min(logits.size(), allowed_));
  check_finite(logits);
  logits_.assign(logits.begin(), logits.end());
  change_logits();
  for (const std::span<const TokenId> out : {std::span<const TokenId>(options_.suppressed), banned})
    for (const TokenId id : out)
      if (static_cast<std::size_t>(id) < logits_.size()) logits_[static_cast<std::size_t>(id)] = kRemoved;

  if (allowed) allowed->keep(logits_);

  const auto best = std::ranges::max_element(logits_);
  if (allowed && best != logits_.end())
    check(*best > kRemoved,
          Hint{"the tokenizer cannot spell what the constraint requires, or ids are suppressed"},
          "the constraint allows no token");
  check(best != logits_.end() && *best > kRemoved, Hint{"suppress fewer ids"}, "every token is suppressed");
  const TokenId id = options_.temperature == 0 ? static_cast<TokenId>(best - logits_.begin()) : draw(*best);
  ++drawn_;
  ++generated_[id];
  history_.push_back(id);
  return id;
}

void Sampler::change_logits() {
  const auto change = [&](TokenId id, auto with) {
    if (static_cast<std::size_t>(id) < logits_.size()) with(logits_[static_cast<std::size_t>(id)]);
  };
  for (const auto& [id, bias] : options_.logit_bias) change(id, [added = bias](float& logit) { logit += added; });
  if (options_.repetition_penalty != 1)
    for (const TokenId id : recent())
      change(id, [&](float& logit) {
        logit = logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
      });
  if (options_.frequency_penalty != 0 || options_.presence_penalty != 0)
    for (const auto& [id, count] : generated_)
      change(id, [this, times = static_cast<float>(count)](float& logit) {
        logit -= options_.frequency_penalty * times + options_.presence_penalty;
      });
}

// Returns each id once.
std::vector<TokenId> Sampler::recent() const {
  const std::size_t size = history_.size();
  const std::size_t count =
      options_.repeat_last_n < 0 ? size : std::min(size, static_cast<std::size_t>(options_.repeat_last_n));
  std::vector<TokenId> ids(history_.end() - static_cast<std::ptrdiff_t>(count), history_.end());
  std::ranges::sort(ids);
  const auto repeated = std::ranges::unique(ids);
  ids.erase(repeated.begin(), repeated.end());
  return ids;
}

TokenId Sampler::draw(float largest) {
  candidates_.clear();
  for (std::size_t i = 0; i < logits_.size(); ++i)
    if (logits_[i] > kRemoved) candidates_.push_back({logits_[i], static_cast<TokenId>(i), 0});
  keep_top_k();
  for (Candidate& candidate : candidates_)
    candidate.weight =
        std::exp(static_cast<double>(candidate.logit - largest) / static_cast<double>(options_.temperature));
  keep_top_p();
  if (options_.min_p > 0)
    std::erase_if(candidates_, [&](const Candidate& candidate) {
      return candidate.weight < static_cast<double>(options_.min_p);  // the largest weight is 1
    });

  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  double left = Rng(options_.seed, 2 * drawn_).uniform_double() * total;
  for (const Candidate& candidate : candidates_) {
    left -= candidate.weight;
    if (left < 0) return candidate.id;
  }
  return candidates_.back().id;
}

bool Sampler::better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

void Sampler::keep_top_k() {
  const auto k = static_cast<std::size_t>(options_.top_k);
  if (k == 0 || k >= candidates_.size()) return;
  std::ranges::nth_element(candidates_, candidates_.begin() + static_cast<std::ptrdiff_t>(k), better);
  candidates_.resize(k);
}

// Sorts only as many candidates as needed to reach top_p, doubling the number in each pass.
void Sampler::keep_top_p() {
  if (options_.top_p >= 1) return;
  double total = 0, reached = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  const double target = static_cast<double>(options_.top_p) * total;
  std::size_t kept = 0, sorted = 0;
  while (kept < candidates_.size()) {
    if (kept == sorted) {
      const std::size_t end = std::min(candidates_.size(), std::max(kFirstSorted, 2 * sorted));
      const auto from = candidates_.begin() + static_cast<std::ptrdiff_t>(sorted),
                 to = candidates_.begin() + static_cast<std::ptrdiff_t>(end);
      if (to != candidates_.end()) std::nth_element(from, to, candidates_.end(), better);
      std::sort(from, to, better);
      sorted = end;
    }
    reached += candidates_[kept++].weight;
    if (reached >= target) break;
  }
  candidates_.resize(kept);
}

}  // namespace thimble
