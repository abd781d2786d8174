// Classifies what limits a run and lists the evidence.
//
//   infrastructure   the machine: waiting for data, time spent outside of steps, a dtype fallback
//   data             too little data for this model: many epochs, few tokens per parameter,
//                    training loss far below validation loss, or no better validation for long
//   optimization     the loss diverged, spiked or was still falling; the gradient grew or was
//                    clipped; or, without any of these, the loss has leveled off
//
// Each sign is strong or slight. The class with the strongest sign wins; ties are resolved in the
// order above, cheapest to rule out first. All figures are measured in the run itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "train/metrics.h"

namespace thimble {

enum class Limit { infrastructure, data, optimization };
std::string_view name_of(Limit limit);

struct RunFacts {
  const RunHistory& history;
  std::string divergence = {};  // why the run diverged, as a sentence; empty: it did not
  bool began_trained = false;   // with --init: its parameters were trained on other text before
  std::int64_t parameters = 0;
  std::uint64_t unique_tokens = 0;  // of the training set
  std::int64_t tokens_seen = 0;
  double train_loss = 0;                      // smoothed
  bool dropout = false;                       // the training loss includes dropout noise
  double wall_seconds = 0, step_seconds = 0;  // of this call, from its first step on
  std::string fallback = {};                  // a dtype fallback as a sentence; empty: none
};

struct Diagnosis {
  Limit limit = Limit::optimization;
  std::vector<std::string> evidence;  // for `limit` only, strongest first
  std::string advice;

  std::string text() const;  // several lines, human-readable
  Json to_json() const;
};

// Returns nullopt if the run has fewer than 20 steps and did not diverge.
std::optional<Diagnosis> diagnose(const RunFacts& facts);

}  // namespace thimble
