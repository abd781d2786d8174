// The validation of a run: the averaged weights where there are any, else the raw ones.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/signals.h"
#include "config/config.h"
#include "data/token_set.h"
#include "dist/communicator.h"
#include "eval/score.h"
#include "tokenizer/tokenizer.h"
#include "train/checkpoint.h"

namespace thimble {

// Nothing if it was interrupted. The raw weights are back in their place afterwards, bit for bit.
// Of several ranks each scores a share; all get the sum, or nothing if anybody was interrupted.
std::optional<Score> validation_score(const TrainedModel& trained, Communicator& ranks, const TokenSet& val,
                                      const ByteTable& bytes, std::int64_t val_tokens,
                                      const Interrupt& interrupt,
                                      const std::function<void(std::int64_t tokens)>& on_scored = {});

// What a validation means for the run: is it the best so far, and is it time to give up?
//
// Best is the lowest loss. Patience counts validations in a row that did not beat the last good one by min_delta; from
// min_steps on, `patience` of them stop the run (0: never).
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

// The golden output: what a model says greedily after bos. It is written into every checkpoint, so that whoever holds
// the file later (`thimble qa`) can see that it still says the same, whatever program or machine computes it.
inline constexpr std::int64_t kGoldenTokens = 32;  // or the context, where that is less

struct GoldenOutput {
  std::vector<TokenId> ids;  // empty: logits were not finite
  double nats = 0;           // of all of them, each after those before it

  double mean_nats() const { return ids.empty() ? 0 : nats / static_cast<double>(ids.size()); }
};

// Of the weights that are saved as the model: the averaged ones where there are any. The raw weights are back in their
// place afterwards, bit for bit.
GoldenOutput golden_output(const TrainedModel& trained, const Tokenizer& tokenizer);

// Into the metadata of a checkpoint, under kGoldenKey ("17 4 260 ...") and kGoldenNatsKey; nothing for an empty one.
void append_golden(const GoldenOutput& golden, CheckpointRecord& record);
// An Error for texts that are no such thing, or hold ids outside the vocabulary.
GoldenOutput golden_from(std::string_view ids, std::string_view nats, TokenId vocab_size);

// -log p of an id, over all logits.
double nats_of(std::span<const float> logits, TokenId id);

// What a model says while it learns: at every validation a few short texts, kept in metrics.jsonl for the report.
//
// Texts begin at bos and are drawn with a seed that stays the same, so that two steps differ by the weights alone. Of
// chats, the first questions of the validation set are answered greedily.
struct SaidText {
  std::string prompt;  // special tokens are spelled out; empty: bos alone
  std::string text;    // bytes that are no UTF-8 are possible: it is what the tokens stand for
};

struct SampleSettings {
  std::int64_t count = 0;
  std::uint64_t seed = 0;
};

inline constexpr std::int64_t kSampleTokens = 64;  // prompt included, or the context where that is less

// Of the weights that are validated: the averaged ones where there are any. The raw weights are back in their place
// afterwards, bit for bit. `val`: where chats take their questions from; may be null. Fewer texts than asked for where
// there are fewer questions, none where logits are not finite.
std::vector<SaidText> say_samples(const TrainedModel& trained, const Tokenizer& tokenizer,
                                  const TokenSet* val, const SampleSettings& settings);

}  // namespace thimble
