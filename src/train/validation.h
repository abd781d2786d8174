// The validation of a run: the score, what it means for the run, the samples and the golden output.
//
// All of it is computed with the averaged weights where there are any (optim/averaging.h), else with the raw ones. The
// averaged weights take the place of the raw ones once for each validation.
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
#include "train/reporter.h"

namespace thimble {

// Runs the action with the averaged weights in the place of the raw ones, in host memory and on the device; with the
// raw ones where there is no average. The raw weights are back afterwards, bit for bit, also where the action throws.
// Where a device trains, its weights have been fetched before (Model::fetch_weights).
void with_averaged_weights(Model& model, const Averaging& averaging, const std::function<void()>& action);

// What a validation means for the run: is it the best so far, and is it time to give up?
//
// Best is the lowest loss. Patience counts validations in a row that did not beat the last good one by min_delta; from
// min_steps on, `patience` of them stop the run (0: never).
// Takes the validation of state.step into the state; true if it is the best.
bool note_validation(const TrainConfig& config, double loss, TrainState& state);
bool out_of_patience(const TrainConfig& config, const TrainState& state);

// The golden output: what a model says greedily after bos. It is written into every checkpoint, so that whoever holds
// the file later (`thimble qa`) can see that it still says the same, whatever program or machine computes it.
inline constexpr std::int64_t kGoldenTokens = 32;  // or the context, where that is less

struct GoldenOutput {
  std::vector<TokenId> ids;  // empty: logits were not finite
  double nats = 0;           // of all of them, each after those before it

  double mean_nats() const { return ids.empty() ? 0 : nats / static_cast<double>(ids.size()); }
};

// Of the weights that the model has now.
GoldenOutput golden_output(Model& model, const Tokenizer& tokenizer);

// Into the metadata of a checkpoint, under kGoldenKey ("17 4 260 ...") and kGoldenNatsKey; nothing for an empty one.
void append_golden(const GoldenOutput& golden, CheckpointRecord& record);
// An Error for texts that are no such thing, or hold ids outside the vocabulary.
GoldenOutput golden_from(std::string_view ids, std::string_view nats, TokenId vocab_size);

// -log p of an id, over all logits.
double nats_of(std::span<const float> logits, TokenId id);

// A short text that the model makes at a validation, kept in metrics.jsonl for the report.
//
// Texts begin at bos and are drawn with a seed that stays the same, so that two steps differ by the weights alone. Of
// chats, the first questions of the validation set are answered greedily.
struct TextSample {
  std::string prompt;  // special tokens are spelled out; empty: bos alone
  std::string text;    // bytes that are no UTF-8 are possible: it is what the tokens stand for
};

struct SampleSettings {
  std::int64_t count = 0;
  std::uint64_t seed = 0;
};

inline constexpr std::int64_t kSampleTokens = 64;  // prompt included, or the context where that is less

// Of the weights that the model has now. `val`: where chats take their questions from; may be null. Fewer texts than
// asked for where there are fewer questions, none where logits are not finite.
std::vector<TextSample> generate_samples(Model& model, const Tokenizer& tokenizer, const TokenSet* val,
                                         const SampleSettings& settings);

// What validations of a run work with.
struct ValidationParts {
  const Config& config;
  Model& model;
  const Averaging& averaging;
  const Tokenizer& tokenizer;
  const ByteTable& bytes;
  const TokenSet* val = nullptr;  // nullptr: there is nothing to validate on
  Communicator& ranks;            // each scores a share
  const Interrupt& interrupt;
  std::int64_t samples = 0;  // texts of each validation; the first rank generates them
};

struct Validation {
  enum class Outcome { interrupted, not_finite, worse, best };
  Outcome outcome = Outcome::interrupted;
  double loss = 0;  // where it was not interrupted
};

// Validates the model of a run, and remembers of the last time what its checkpoint records.
class Validator {
 public:
  explicit Validator(const ValidationParts& parts);

  bool has_data() const { return parts_.val != nullptr; }

  // Scores the model of state.step on all ranks, notes in the state what that means, and reports score and samples. On
  // all ranks the outcome is the same. Interrupted: the validation stays due. `last`: the run is over.
  Validation validate(TrainState& state, bool last, Reporter& reporter);

  // Of the last validation of this call whose loss is finite.
  const std::optional<Score>& score() const { return score_; }

  // What a checkpoint of this step says of the model: its golden output and, if the step was validated, the score.
  CheckpointRecord record(std::int64_t step);

 private:
  std::optional<Score> score_all(Reporter& reporter);
  void report_samples(std::int64_t step, Reporter& reporter);
  void remember_golden(std::int64_t step);

  ValidationParts parts_;
  std::optional<Score> score_;
  std::int64_t scored_step_ = -1;
  GoldenOutput golden_;
  std::int64_t golden_step_ = -1;
  std::string val_set_;  // what is scored: told apart from other sets
};

}  // namespace thimble
