// Validation of a run: the score, best-so-far and patience, the samples and the golden output.
//
// All of it uses the averaged weights if there are any (optim/averaging.h), else the raw weights.
// The averages are swapped in once per validation.
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

// Runs the action with the averaged weights swapped in, in host memory and on the device; without
// an average it runs with the raw weights. Afterwards the raw weights are restored bit for bit,
// even if the action throws. On a GPU, call Model::fetch_weights first.
void with_averaged_weights(Model& model, const Averaging& averaging, const std::function<void()>& action);

// The best validation is the one with the lowest loss; an untrained model (step 0) is never the
// best, but a trained one must beat it. Patience counts consecutive validations that did not beat
// the last good one by min_delta; from min_steps on, `patience` of them stop the run (0: never).
// record_validation records the validation of state.step in the state; returns true if it is the
// best.
bool record_validation(const TrainConfig& config, double loss, TrainState& state);
bool out_of_patience(const TrainConfig& config, const TrainState& state);
bool reached_target(const TrainConfig& config, const TrainState& state);  // target_val_loss

// The golden output: the tokens a model generates greedily after bos. It is stored in every
// checkpoint, so that `thimble qa` can later check that the file still gives the same output.
inline constexpr std::int64_t kGoldenTokens = 32;  // or the context length if that is less

struct GoldenOutput {
  std::vector<TokenId> ids;  // empty: logits were not finite
  double nats = 0;           // of the complete sequence

  double mean_nats() const { return ids.empty() ? 0 : nats / static_cast<double>(ids.size()); }
};

// Uses the model's current weights.
GoldenOutput golden_output(Model& model, const Tokenizer& tokenizer);

// Appends kGoldenKey ("17 4 260 ...") and kGoldenNatsKey; does nothing for an empty golden output.
void append_golden(const GoldenOutput& golden, CheckpointRecord& record);
// Parses both values; throws Error if they are malformed or contain ids outside the vocabulary.
GoldenOutput golden_from(std::string_view ids, std::string_view nats, TokenId vocab_size);

// -log p of an id, over all logits.
double nats_of(std::span<const float> logits, TokenId id);

// A short text generated at a validation, stored in metrics.jsonl for the report.
//
// Texts start at bos and are sampled with a fixed seed, so samples of two steps differ only because
// of the weights. For chats, the first questions of the validation set are answered greedily.
struct TextSample {
  std::string prompt;  // special tokens are spelled out; empty: bos only
  std::string text;    // decoded tokens; may be invalid UTF-8
};

struct SampleSettings {
  std::int64_t count = 0;
  std::uint64_t seed = 0;
};

inline constexpr std::int64_t kSampleTokens = 64;  // prompt included; or the context length if less

// Uses the model's current weights. `val` supplies the questions for chats and may be null. Returns
// fewer texts than requested if there are fewer questions, and none if logits are not finite.
std::vector<TextSample> generate_samples(Model& model, const Tokenizer& tokenizer, const TokenSet* val,
                                         const SampleSettings& settings);

// The inputs of a Validator; all references must outlive it.
struct ValidationParts {
  const Config& config;
  Model& model;
  const Averaging& averaging;
  const Tokenizer& tokenizer;
  const ByteTable& bytes;
  const TokenSet* val = nullptr;  // nullptr: no validation data
  Communicator& ranks;            // each rank scores a share
  const Interrupt& interrupt;
  std::int64_t samples = 0;  // texts per validation, generated on rank 0
};

struct Validation {
  enum class Outcome { interrupted, not_finite, worse, best };
  Outcome outcome = Outcome::interrupted;
  double loss = 0;  // unset if interrupted
};

// Validates the model of a run and stores the last results for the next checkpoint.
class Validator {
 public:
  explicit Validator(const ValidationParts& parts);

  bool has_data() const { return parts_.val != nullptr; }

  // Scores the model on all ranks, updates the state, and reports the score and samples. The
  // outcome is the same on all ranks. If interrupted, state.validation_due stays set. `last`: final
  // validation.
  Validation validate(TrainState& state, bool last, Reporter& reporter);

  // The last finite score of this call.
  const std::optional<Score>& score() const { return score_; }

  // Checkpoint metadata for this step: the golden output and, if the step was validated, the score.
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
  std::string val_set_;  // fingerprint of the validation tokens; computed on first use
};

}  // namespace thimble
