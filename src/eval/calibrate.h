// Text for a model to read while its matrices are watched: what GPTQ takes H from (pack/input_moments.h).
//
//   const Grid text = calibration_windows(train_set, model.config(), 131072);      // or sampled_windows(...)
//   const InputMoments moments = calibrate(model, text, progress, &interrupt);
//
// On a card the rows are copied back and summed on the host.
#pragma once

#include <cstdint>

#include "base/interrupt.h"
#include "base/progress.h"
#include "data/token_set.h"
#include "model/model.h"
#include "pack/input_moments.h"

namespace thimble {

// Rows of the model's context, about `tokens` in all, spread evenly over the set; fewer where it has fewer.
Grid calibration_windows(const TokenSet& set, const ModelConfig& config, std::int64_t tokens);

// The same made by the model itself, from bos on at temperature 0.8: no text is needed.
Grid sampled_windows(Model& model, TokenId bos, std::int64_t tokens, std::uint64_t seed,
                     const ProgressOutput& progress, const Interrupt* interrupt = nullptr);

InputMoments calibrate(Model& model, const Grid& windows, const ProgressOutput& progress,
                       const Interrupt* interrupt = nullptr);

}  // namespace thimble
