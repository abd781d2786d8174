// Coordination between ranks: consistency checks, and after each step whether any rank received a
// request to stop or to save.
#pragma once

#include <string>

#include "base/signals.h"
#include "dist/communicator.h"
#include "eval/score.h"
#include "model/model.h"

namespace thimble {

// What must be equal on all ranks before the first step. Weights are compared by digest.
struct RankFacts {
  std::string config, data_digest, tokenizer_digest, device;
  std::int64_t step = 0;
};
void check_same_start(Communicator& ranks, const RankFacts& facts, std::span<const float> weights);

// Every rank keeps its own copy of the weights and updates it from the same sums. Copies that
// differ in a single bit must not be saved as one model, so this throws Error.
void check_same_weights(Communicator& ranks, std::span<const float> weights, std::int64_t step);

// The minimum of `number` over all ranks; `what` names it in timeout errors.
std::int64_t smallest(Communicator& ranks, std::int64_t number, const std::string& what);
// The maximum over all ranks: a step ends when the slowest rank is done.
double longest(Communicator& ranks, double seconds);

// Requests that any rank received since the previous call.
struct StopRequest {
  bool stop = false, save = false;
};
StopRequest stop_request_of_all(Communicator& ranks, const Interrupt& interrupt, const SaveSignal* save_now);

// The sum of all ranks' scores, or nullopt if any rank was interrupted.
std::optional<Score> score_of_all(Communicator& ranks, const std::optional<Score>& own);

}  // namespace thimble
