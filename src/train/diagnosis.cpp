#include "train/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "base/table.h"
#include "data/describe.h"

namespace thimble {

namespace {

constexpr std::int64_t kFewestSteps = 20;
constexpr double kSlowInput = 0.1, kVerySlowInput = 0.3;  // fraction of the time spent in steps
constexpr double kMuchOverhead = 0.5;                     // fraction of wall time spent outside of steps
constexpr double kManyEpochs = 4, kVeryManyEpochs = 16;   // repeated text helps less after about 4 epochs
constexpr double kGapNats = 0.1, kGapShare = 0.05, kWideGapShare = 0.15;
constexpr double kBelowNats = 0.3, kBelowShare = 0.15;  // validation loss this far below training loss
constexpr double kFallNats = 0.01, kFallShare = 0.01, kSteepFallShare = 0.05;
constexpr double kManySpikes = 0.005, kOftenClipped = 0.5, kGradientGrowth = 3;

enum class Strength { slight, strong };

struct Sign {
  Limit limit;
  Strength strength;
  std::string evidence;
};

class Signs {
 public:
  void add(Limit limit, Strength strength, std::string evidence) {
    all_.push_back({limit, strength, std::move(evidence)});
  }
  bool empty() const { return all_.empty(); }
  // Strongest first; equal strengths in the order of add().
  std::vector<Sign> sorted() const {
    std::vector<Sign> signs;
    for (Strength strength : {Strength::strong, Strength::slight})
      for (const Sign& sign : all_)
        if (sign.strength == strength) signs.push_back(sign);
    return signs;
  }

 private:
  std::vector<Sign> all_;
};

Strength strong_if(bool condition) {
  return condition ? Strength::strong : Strength::slight;
}

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The i-th fifth (0 to 4) of a series.
std::span<const double> fifth(const std::vector<double>& points, std::size_t i) {
  const std::size_t begin = i * points.size() / 5, end = (i + 1) * points.size() / 5;
  return std::span(points).subspan(begin, end - begin);
}

void check_infrastructure(const RunFacts& facts, Signs& signs) {
  const RunHistory& history = facts.history;
  const double waiting = history.seconds() > 0 ? history.input_seconds() / history.seconds() : 0;
  if (waiting > kSlowInput)
    signs.add(Limit::infrastructure, strong_if(waiting > kVerySlowInput),
              fmt::format("steps spent {:.0f} % of their time waiting for data", 100 * waiting));
  const double overhead = facts.wall_seconds > 0 ? 1 - facts.step_seconds / facts.wall_seconds : 0;
  if (overhead > kMuchOverhead)
    signs.add(Limit::infrastructure, Strength::slight,
              fmt::format("validation and checkpoints took {:.0f} % of {}", 100 * overhead,
                          in_seconds(facts.wall_seconds)));
  if (!facts.fallback.empty()) signs.add(Limit::infrastructure, Strength::slight, facts.fallback);
}

// The same judgement as at the start of the run. A fine-tuned model has seen other text as well, of
// unknown size.
DataAmount amount_of(const RunFacts& facts) {
  if (facts.began_trained || facts.parameters <= 0) return DataAmount::enough;
  return data_amount(facts.unique_tokens, static_cast<std::uint64_t>(facts.tokens_seen),
                     static_cast<std::uint64_t>(facts.parameters));
}

void check_data(const RunFacts& facts, Signs& signs) {
  const auto validations = facts.history.validations();
  const auto unique = static_cast<double>(facts.unique_tokens);
  const double epochs = unique > 0 ? static_cast<double>(facts.tokens_seen) / unique : 0;
  if (!validations.empty()) {
    const double val = validations.back().loss, gap = val - facts.train_loss;
    if (gap > kGapNats && gap > kGapShare * val)
      signs.add(Limit::data, strong_if(gap > kWideGapShare * val),
                fmt::format("training loss {:.4f} is {:.4f} nats below validation loss {:.4f}",
                            facts.train_loss, gap, val));
    // A smoothed loss that falls quickly lags behind, so compare with the lowest of the last 10
    // losses. Dropout raises the training loss only, so the check is skipped with dropout.
    const double lowest = facts.history.lowest_latest_loss(), below = lowest - val;
    if (!facts.dropout && below > kBelowNats && below > kBelowShare * lowest)
      signs.add(Limit::data, Strength::strong,
                fmt::format("validation loss {:.4f} is {:.4f} nats below training loss: check that the "
                            "validation text is not part of the training text",
                            val, below));
    // The validation at step 0 does not count as a best one.
    const auto trained = validations.subspan(validations.front().step == 0 ? 1 : 0);
    const auto best = std::ranges::min_element(trained, {}, &RunHistory::Validation::loss);
    if (trained.end() - best > 2 && val > best->loss + kFallNats)
      signs.add(Limit::data, Strength::strong,
                fmt::format("validation was best at step {} and is {:.4f} nats worse now", best->step,
                            val - best->loss));
  }
  if (epochs > kManyEpochs)
    signs.add(Limit::data, strong_if(epochs > kVeryManyEpochs),
              fmt::format("{:.1f} epochs over {} tokens", epochs, with_unit(unique)));
  // Before the first epoch ends, the amount of data cannot be the limit.
  if (epochs >= 1 && amount_of(facts) == DataAmount::too_little_text)
    signs.add(Limit::data, Strength::slight,
              fmt::format("{:.2g} distinct tokens per parameter, at least {} are recommended",
                          unique / static_cast<double>(facts.parameters), kMinTokensPerParameter));
}

bool ended_worse_than_it_began(const RunHistory& history) {
  const auto validations = history.validations();
  return validations.size() > 1 && validations.front().step == 0 &&
         validations.back().loss > validations.front().loss;
}

void check_optimization(const RunFacts& facts, Signs& signs) {
  const RunHistory& history = facts.history;
  const auto steps = static_cast<double>(history.steps());
  if (!facts.divergence.empty()) signs.add(Limit::optimization, Strength::strong, facts.divergence);
  if (ended_worse_than_it_began(history))
    signs.add(Limit::optimization, Strength::strong,
              fmt::format("validation loss {:.4f} is worse than before the first step, {:.4f}",
                          history.validations().back().loss, history.validations().front().loss));
  const double spikes = static_cast<double>(history.spikes());
  if (spikes > std::max(1.0, kManySpikes * steps))
    signs.add(Limit::optimization, Strength::strong,
              fmt::format("the loss spiked {} times in {} steps", history.spikes(), history.steps()));
  const std::vector<double> norms = history.grad_norms().points();
  const double early = mean(fifth(norms, 1)), late = mean(fifth(norms, 4));
  if (late > kGradientGrowth * early)
    signs.add(Limit::optimization, Strength::slight,
              fmt::format("the gradient norm grew from {:.3g} to {:.3g}", early, late));
  const double clipped = static_cast<double>(history.clipped()) / steps;
  if (clipped > kOftenClipped)
    signs.add(Limit::optimization, Strength::slight,
              fmt::format("the gradient was clipped in {:.0f} % of the steps", 100 * clipped));
  const std::vector<double> losses = history.losses().points();
  const double before = mean(fifth(losses, 3)), now = mean(fifth(losses, 4)), fall = before - now;
  if (fall > kFallNats && fall > kFallShare * now)
    signs.add(
        Limit::optimization, strong_if(fall > kSteepFallShare * now),
        fmt::format("the loss was still falling: by {:.4f} nats over the last fifth of the steps", fall));
}

std::string advice_for(Limit limit, const RunFacts& facts) {
  switch (limit) {
    case Limit::infrastructure:
      return "a faster disk, fewer validations, or a different device";
    case Limit::data:
      return facts.began_trained ? "more text, fewer steps, or weight decay"
                                 : "more text, a smaller model, or weight decay";
    case Limit::optimization:
      break;
  }
  if (!facts.divergence.empty() || facts.history.spikes() > 0 || ended_worse_than_it_began(facts.history))
    return "a lower learning rate, a longer warm-up, or gradient clipping (clip)";
  switch (amount_of(facts)) {
    case DataAmount::too_little_text:
      return "more text with more steps, a smaller model, or a different learning rate";
    case DataAmount::too_few_steps:
      return "more steps, a smaller model, or a different learning rate";
    case DataAmount::enough:
      break;
  }
  return facts.began_trained ? "more steps, or a different learning rate"
                             : "more steps, a larger model, or a different learning rate";
}

std::vector<Sign> find_signs(const RunFacts& facts) {
  Signs signs;
  check_infrastructure(facts, signs);
  check_data(facts, signs);
  check_optimization(facts, signs);
  if (signs.empty())
    signs.add(Limit::optimization, Strength::slight,
              fmt::format("the loss has leveled off at {:.4f}", facts.train_loss));
  return signs.sorted();
}

}  // namespace

std::string_view name_of(Limit limit) {
  switch (limit) {
    case Limit::infrastructure:
      return "infrastructure";
    case Limit::data:
      return "data";
    case Limit::optimization:
      break;
  }
  return "optimization";
}

std::optional<Diagnosis> diagnose(const RunFacts& facts) {
  const bool diverged = !facts.divergence.empty();
  if (facts.history.steps() < kFewestSteps && !diverged) return std::nullopt;
  Diagnosis diagnosis;
  if (facts.history.steps() < kFewestSteps) {
    diagnosis.evidence = {facts.divergence};
  } else {
    const std::vector<Sign> signs = find_signs(facts);
    diagnosis.limit = diverged ? Limit::optimization : signs.front().limit;
    for (const Sign& sign : signs)
      if (sign.limit == diagnosis.limit) diagnosis.evidence.push_back(sign.evidence);
  }
  diagnosis.advice = advice_for(diagnosis.limit, facts);
  return diagnosis;
}

std::string Diagnosis::text() const {
  std::string text = fmt::format("what limits this run: {}\n", name_of(limit));
  for (const std::string& line : evidence) text += fmt::format("  {}\n", line);
  return text + fmt::format("  what may help: {}\n", advice);
}

Json Diagnosis::to_json() const {
  Json lines = Json::array();
  for (const std::string& line : evidence) lines.push(line);
  return Json::object().set("limit", name_of(limit)).set("evidence", lines).set("advice", advice);
}

}  // namespace thimble
