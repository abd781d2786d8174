#include "train/validation.h"

namespace thimble {

namespace {

std::optional<Score> score_or_nothing(Model& model, const TokenSet& val, const ByteTable& bytes,
                                      std::int64_t val_tokens, const Interrupt& interrupt) {
  try {
    return score_set(model, bytes, val, {.val_tokens = val_tokens}, ProgressOutput::nowhere(), &interrupt);
  } catch (const Interrupted&) {
    return std::nullopt;
  }
}

}  // namespace

std::optional<Score> validation_score(const Trained& trained, const TokenSet& val, const ByteTable& bytes,
                                      std::int64_t val_tokens, const Interrupt& interrupt) {
  std::optional<Score> score;
  {
    const AverageInPlace average(trained.averaging, trained.model.weights());
    trained.model.weights_changed();
    score = score_or_nothing(trained.model, val, bytes, val_tokens, interrupt);
  }
  trained.model.weights_changed();
  return score;
}

}  // namespace thimble
