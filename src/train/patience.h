// What a validation means for the run: is it the best so far, and is it time to give up?
//
// Best is the lowest loss. Patience counts validations in a row that did not beat the last good one by min_delta; from
// min_steps on, `patience` of them stop the run (0: never).
#pragma once

#include "model/config.h"
#include "train/checkpoint.h"

namespace thimble {

// Takes the validation of state.step into the state; true if it is the best.
inline bool note_validation(const TrainConfig& config, double loss, TrainState& state) {
  if (state.step == 0 && !state.began_trained) return false;  // an untrained model is nobody's best
  const bool first = state.best_step < 0;
  if (first || loss < state.patience_loss - config.min_delta) {
    state.patience_loss = loss;
    state.stale_validations = 0;
  } else {
    ++state.stale_validations;
  }
  if (!first && loss >= state.best_val_loss) return false;
  state.best_val_loss = loss;
  state.best_step = state.step;
  return true;
}

inline bool out_of_patience(const TrainConfig& config, const TrainState& state) {
  return config.patience > 0 && state.stale_validations >= config.patience && state.step >= config.min_steps;
}

}  // namespace thimble
