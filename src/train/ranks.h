// What ranks that train together settle between them: at the start that they are about to do the same, and after each
// step whether anybody was asked to stop or to save.
#pragma once

#include <string>

#include "base/signals.h"
#include "dist/communicator.h"
#include "eval/score.h"
#include "model/model.h"

namespace thimble {

// Everything that two ranks must have alike before the first step. Weights are compared by their digest.
struct RankFacts {
  std::string config, data_digest, tokenizer_digest, device;
  std::int64_t step = 0;
};
void check_same_start(Communicator& ranks, const RankFacts& facts, std::span<const float> weights);

// Weights are everyone's own, changed by the same arithmetic from the same sums: ranks whose bits differ nevertheless
// must not be saved as one model.
void check_same_weights(Communicator& ranks, std::span<const float> weights, std::int64_t step);

// The largest number of rows that suits everyone.
std::int64_t smallest(Communicator& ranks, std::int64_t number, const std::string& what);
// Of times: a step is over when the slowest is.
double longest(Communicator& ranks, double seconds);

// What anybody was asked for since the last call.
struct StopRequest {
  bool stop = false, save = false;
};
StopRequest stop_request_of_all(Communicator& ranks, const Interrupt& interrupt, const SaveSignal* save_now);

// The scores of all ranks' shares as one; nothing if anybody was interrupted.
std::optional<Score> score_of_all(Communicator& ranks, const std::optional<Score>& own);

}  // namespace thimble
