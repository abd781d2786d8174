// What may change when a run goes on.
//
//   freely       how long and how often: steps, max_seconds, val_every, keep, ...
//   with force   every other setting of training: the run is no longer the one that its first steps began
//   never        the model (dropout excepted), and what the saved state is made for: Muon or Adam, SWA or EMA
#pragma once

#include <string>
#include <vector>

#include "model/config.h"
#include "train/checkpoint.h"

namespace thimble {

// Refuses what may not change, naming all of it; returns a line for each setting that does: "lr: 0.01 -> 0.02".
std::vector<std::string> check_changes(const Config& before, const Config& after, bool force);

// A run that made its steps, used up its time or ran out of patience is an Error: there is nothing to go on with.
void check_unfinished(const TrainConfig& train, const TrainState& state, const std::string& name);

// Where it goes on: "resuming at step 20 of 100".
std::string resume_note(const TrainConfig& train, const TrainState& state);

// Schedules are functions of the step and of the end. With another end they keep their shape, so the rate of the next
// step may jump: a sentence that says so; empty if the end is the same.
std::string schedule_note(const TrainConfig& before, const TrainConfig& after, const TrainState& state);

}  // namespace thimble
