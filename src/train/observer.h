// Somebody who follows a run as it goes: `thimble golf` writes its log from here.
//
// Called in the loop's own thread, between steps. What it throws ends the run.
#pragma once

#include <cstdint>

#include "train/reporter.h"

namespace thimble {

class TrainObserver {
 public:
  virtual ~TrainObserver() = default;

  virtual void primed(std::int64_t /*step*/, std::int64_t /*of*/) {}
  virtual void step(const StepReport& /*report*/) {}
  virtual void validating(std::int64_t /*tokens_scored*/) {}
  virtual void validation(const ValidationReport& /*report*/) {}
};

}  // namespace thimble
