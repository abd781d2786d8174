// What limits a run, in one of three classes, with the evidence. Look at the class before turning any knob.
//
//   infrastructure   the machine: waiting for data, time outside of steps, a fallback
//   data             too little of it for this model: many epochs, few tokens per parameter, training far below
//                    validation, a best step long gone
//   optimisation     the loss diverged, spiked or was still falling; the gradient grew or was clipped; or, with none of
//                    that, it has levelled off
//
// A sign is strong or slight. The class with the strongest sign is named; among equals in the order above, because
// what is cheap to rule out comes first. Every figure is one of the run's own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "train/metrics.h"

namespace thimble {

enum class Limit { infrastructure, data, optimisation };
std::string_view name_of(Limit limit);

struct RunFacts {
  const RunHistory& history;
  bool diverged = false;
  std::int64_t parameters = 0;
  std::uint64_t unique_tokens = 0;  // of the training set
  std::int64_t tokens_seen = 0;
  double train_loss = 0;                      // smoothed
  bool dropout = false;                       // in training, so that its loss is not the model's
  double wall_seconds = 0, step_seconds = 0;  // of this call, from its first step on
  std::string fallback = {};                  // what had to be done without; empty: nothing
};

struct Diagnosis {
  Limit limit = Limit::optimisation;
  std::vector<std::string> evidence;  // strongest first, of the named class alone
  std::string advice;

  std::string text() const;  // lines for people
  Json to_json() const;
};

// Nothing for a run too short to tell anything.
std::optional<Diagnosis> diagnose(const RunFacts& facts);

}  // namespace thimble
