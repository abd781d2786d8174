#include "train/validation.h"

#include "train/ranks.h"

namespace thimble {

namespace {

std::optional<Score> score_or_nothing(Model& model, const Communicator& ranks, const TokenSet& val,
                                      const ByteTable& bytes, std::int64_t val_tokens,
                                      const Interrupt& interrupt,
                                      const std::function<void(std::int64_t)>& on_scored) {
  try {
    return score_set(model, bytes, val,
                     {.val_tokens = val_tokens,
                      .isolate = model.config().isolate,
                      .may_diverge = true,
                      .rank = ranks.rank(),
                      .ranks = ranks.size(),
                      .on_scored = on_scored},
                     ProgressOutput::nowhere(), &interrupt);
  } catch (const Interrupted&) {
    return std::nullopt;
  }
}

}  // namespace

std::optional<Score> validation_score(const Trained& trained, Communicator& ranks, const TokenSet& val,
                                      const ByteTable& bytes, std::int64_t val_tokens,
                                      const Interrupt& interrupt,
                                      const std::function<void(std::int64_t tokens)>& on_scored) {
  std::optional<Score> score;
  {
    const AverageInPlace average(trained.averaging, trained.model.weights());
    trained.model.weights_changed();
    score = score_or_nothing(trained.model, ranks, val, bytes, val_tokens, interrupt, on_scored);
  }
  trained.model.weights_changed();
  return score_of_all(ranks, score);
}

}  // namespace thimble
