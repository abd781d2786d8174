// The optimizer of a new run, and learning rates that suit it.
//
// A preset's learning rates are meant for its own optimizer and for training from random weights.
// They are replaced if the user asks for the other optimizer or starts from a trained model:
//
//   AdamW   0.28 / cbrt(parameters): 0.003 for 0.8 M, 0.001 for 22 M, 0.00035 for 494 M
//   Muon    the preset's rates; if it does not use Muon, 0.02 for matrices
//
// Fine-tuning uses a tenth of these rates and a warm-up of at most 20 steps. It uses AdamW unless
// Muon is asked for, because Muon changes every direction of a matrix equally, including those that
// training has settled. Adapters, which start at 0, use twice the rates. Settings given by the user
// are always kept.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "config/builder.h"

namespace thimble {

struct OptimizerChoice {
  std::string_view name = {};  // "muon" or "adamw"; empty: as muon_steps says, else the default
  bool fine_tunes = false;     // the run starts from a trained model
};

// The learning rate of AdamW for training from random weights.
double adamw_rate(std::int64_t parameters);

// Call it when everything that determines the model's size has been set. Returns a sentence about
// the choice, or an empty string if the preset's settings are used unchanged. Throws an Error if
// `name` contradicts a muon_steps that the user gave.
std::string choose_optimizer(const OptimizerChoice& choice, ConfigBuilder& settings);

}  // namespace thimble
