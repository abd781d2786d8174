#include "train/ranks.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/digest.h"
#include "base/error.h"
#include "base/machine.h"
#include "dist/communicator.h"

namespace thimble {

namespace {

std::string digest_hex(std::span<const float> weights) {
  return digest_of(std::as_bytes(weights)).hex();
}

}  // namespace

void check_same_start(Communicator& ranks, const RankFacts& facts, std::span<const float> weights) {
  if (ranks.size() == 1) return;
  check_same(ranks,
             {{"version of thimble", fmt::format("{} ({})", version(), build_type())},
              {"device", facts.device},
              {"config", facts.config},
              {"tokenizer", facts.tokenizer_digest},
              {"data", facts.data_digest},
              {"step", fmt::format("{}", facts.step)},
              {"weights at the start", digest_hex(weights)}},
             "all ranks need the same binary, flags, files and run folder");
}

void check_same_weights(Communicator& ranks, std::span<const float> weights, std::int64_t step) {
  if (ranks.size() == 1) return;
  check_same(ranks, {{fmt::format("model at step {}", step), digest_hex(weights)}},
             "train on machines of one kind: processors that round differently or faulty memory cause this; "
             "the last checkpoint is valid");
}

std::int64_t smallest(Communicator& ranks, std::int64_t number, const std::string& what) {
  return std::ranges::min(gather_records(ranks, number, what));
}

double longest(Communicator& ranks, double seconds) {
  return ranks.size() == 1 ? seconds : std::ranges::max(gather_records(ranks, seconds, "the time of a step"));
}

StopRequest stop_request_of_all(Communicator& ranks, const Interrupt& interrupt, const SaveSignal* save_now) {
  const StopRequest own{.stop = interrupt.requested(), .save = save_now && save_now->taken()};
  if (ranks.size() == 1) return own;
  StopRequest all;
  for (const StopRequest& one : gather_records(ranks, own, "the end of a step")) {
    all.stop = all.stop || one.stop;
    all.save = all.save || one.save;
  }
  return all;
}

std::optional<Score> score_of_all(Communicator& ranks, const std::optional<Score>& own) {
  if (ranks.size() == 1) return own;
  struct Share {
    Score score;
    bool interrupted = false;
  };
  const Share share{own.value_or(Score{}), !own.has_value()};
  Score sum;
  for (const Share& one : gather_records(ranks, share, "validation")) {
    if (one.interrupted) return {};
    sum.nats += one.score.nats;
    sum.tokens += one.score.tokens;
    sum.bytes += one.score.bytes;
  }
  check(sum.tokens > 0, "the validation set contains no tokens to score");
  return sum;
}

}  // namespace thimble
