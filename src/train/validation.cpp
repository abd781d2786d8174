#include "train/validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>

#include "base/error.h"
#include "base/text.h"
#include "formats/weights_file.h"
#include "infer/generate.h"
#include "infer/sampler.h"
#include "model/model.h"
#include "tokenizer/chat_layout.h"
#include "train/ranks.h"

namespace thimble {

void with_averaged_weights(Model& model, const Averaging& averaging, const std::function<void()>& action) {
  if (!averaging.available()) return action();
  std::exception_ptr thrown;
  {
    const AverageInPlace average(averaging, model.weights());
    try {
      model.weights_changed();
      action();
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  try {
    model.weights_changed();
  } catch (...) {
    if (!thrown) throw;  // otherwise the device has failed, and the first exception has the cause
  }
  if (thrown) std::rethrow_exception(thrown);
}

bool record_validation(const TrainConfig& config, double loss, TrainState& state) {
  if (state.step == 0 && !state.began_trained) {
    state.untrained_val_loss = state.patience_loss = loss;
    return false;
  }
  const bool first = state.best_step < 0 && !state.untrained_val_loss;
  if (first || loss < state.patience_loss - config.min_delta) {
    state.patience_loss = loss;
    state.stale_validations = 0;
  } else {
    ++state.stale_validations;
  }
  if (state.best_step >= 0 && loss >= state.best_val_loss) return false;
  if (state.untrained_val_loss && loss >= *state.untrained_val_loss) return false;
  state.best_val_loss = loss;
  state.best_step = state.step;
  return true;
}

bool out_of_patience(const TrainConfig& config, const TrainState& state) {
  return config.patience > 0 && state.stale_validations >= config.patience && state.step >= config.min_steps;
}

bool reached_target(const TrainConfig& config, const TrainState& state) {
  return config.target_val_loss > 0 && state.best_step >= 0 && state.best_val_loss <= config.target_val_loss;
}

double nats_of(std::span<const float> logits, TokenId id) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - largest);
  return largest + std::log(sum) - double{logits[static_cast<std::size_t>(id)]};
}

namespace {

bool all_finite(std::span<const float> logits) {
  return std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); });
}

}  // namespace

GoldenOutput golden_output(Model& model, const Tokenizer& tokenizer) {
  const auto length = static_cast<std::size_t>(std::min(kGoldenTokens, model.config().context));
  const auto allowed = static_cast<std::size_t>(tokenizer.vocab_size());
  GoldenOutput golden;
  generate_tokens(model, {bos_of(tokenizer)}, [&](std::span<const float> logits) -> std::optional<TokenId> {
    if (!all_finite(logits)) {
      golden = {};
      return std::nullopt;
    }
    const auto choices = logits.first(allowed);
    const auto id = static_cast<TokenId>(std::ranges::max_element(choices) - choices.begin());
    golden.ids.push_back(id);
    golden.nats += nats_of(logits, id);
    return golden.ids.size() < length ? std::optional(id) : std::nullopt;
  });
  return golden;
}

void append_golden(const GoldenOutput& golden, CheckpointRecord& record) {
  if (golden.ids.empty()) return;
  record.emplace_back(kGoldenKey, joined(golden.ids, " "));
  record.emplace_back(kGoldenNatsKey, fmt::format("{}", golden.nats));
}

GoldenOutput golden_from(std::string_view ids, std::string_view nats, TokenId vocab_size) {
  GoldenOutput golden;
  for (std::size_t begin = 0; begin < ids.size();) {
    const std::size_t end = std::min(ids.find(' ', begin), ids.size());
    const auto id = parse_number<TokenId>(ids.substr(begin, end - begin));
    check(id && *id >= 0 && *id < vocab_size && golden.ids.size() < static_cast<std::size_t>(kGoldenTokens),
          "the golden output contains '{}', expected at most {} ids below {}",
          ids.substr(begin, std::min<std::size_t>(end - begin, 40)), kGoldenTokens, vocab_size);
    golden.ids.push_back(*id);
    begin = end + 1;
  }
  const auto sum = parse_number<double>(nats);
  check(sum && std::isfinite(*sum) && *sum >= 0, "the golden output has '{}' nats, expected a number",
        nats.substr(0, 40));
  golden.nats = *sum;
  return golden;
}

namespace {

constexpr std::uint64_t kTokensToSearch = 1 << 14;  // of the validation set, for questions
constexpr std::int64_t kLeastAnswer = 16;           // tokens that must fit after a question
constexpr float kTemperature = 0.8f;

using Ids = std::vector<TokenId>;

// The first tokens of conversations, up to the first answer, at most `longest` tokens each.
std::vector<Ids> questions_in(const TokenSet& val, std::int64_t count, std::int64_t longest) {
  Grid grid;
  val.append(0, std::min(val.size(), kTokensToSearch), AfterLast::bos, grid);
  std::vector<Ids> questions;
  Ids question;
  for (std::size_t i = 0; i < grid.input.size(); ++i) {
    if (grid.doc_start[i]) question.clear();
    if (!grid.doc_start[i] && question.empty()) continue;
    question.push_back(grid.input[i]);
    if (grid.target[i] < 0) continue;
    if (static_cast<std::int64_t>(question.size()) <= longest) questions.push_back(question);
    if (static_cast<std::int64_t>(questions.size()) == count) break;
    question.clear();
  }
  return questions;
}

// Generates until prompt and answer have `longest` tokens. Returns nullopt if logits are not
// finite.
std::optional<Ids> sampled(Model& model, const Ids& prompt, std::size_t longest, Sampler sampler,
                           const Ids& ends) {
  std::optional<Ids> answer(std::in_place);
  if (prompt.size() >= longest) return answer;
  generate_tokens(model, prompt, [&](std::span<const float> logits) -> std::optional<TokenId> {
    if (!all_finite(logits)) {
      answer.reset();
      return std::nullopt;
    }
    const TokenId id = sampler.sample(logits);
    if (std::ranges::count(ends, id) > 0) return std::nullopt;
    answer->push_back(id);
    return prompt.size() + answer->size() < longest ? std::optional(id) : std::nullopt;
  });
  return answer;
}

}  // namespace

std::vector<TextSample> generate_samples(Model& model, const Tokenizer& tokenizer, const TokenSet* val,
                                         const SampleSettings& settings) {
  const std::int64_t T = std::min(kSampleTokens, model.config().context);
  const bool chats = val && val->marks().of_answers();
  const std::vector<Ids> prompts =
      settings.count == 0 ? std::vector<Ids>()
      : chats             ? questions_in(*val, settings.count, T - kLeastAnswer)
              : std::vector<Ids>(static_cast<std::size_t>(settings.count), Ids{bos_of(tokenizer)});
  Ids ends = end_ids(tokenizer);
  if (chats && val->marks().end_turn) ends.push_back(*val->marks().end_turn);
  std::vector<TextSample> samples;
  for (const Ids& prompt : prompts) {
    const SamplingOptions options{.temperature = chats ? 0 : kTemperature,
                                  .seed = settings.seed + samples.size()};
    const auto answer =
        sampled(model, prompt, static_cast<std::size_t>(T), Sampler(options, tokenizer.vocab_size()), ends);
    if (!answer) return {};
    const auto question = std::span(prompt).subspan(prompt.front() == tokenizer.special().bos ? 1 : 0);
    samples.push_back({.prompt = tokenizer.decode(question, {.keep_special = true}),
                       .text = tokenizer.decode(*answer, {.keep_special = true})});
  }
  return samples;
}

Validator::Validator(const ValidationParts& parts) : parts_(parts) {}

Validation Validator::validate(TrainState& state, bool last, Reporter& reporter) {
  using enum Validation::Outcome;
  Validation result;
  state.validation_due = true;
  with_averaged_weights(parts_.model, parts_.averaging, [&] {
    const std::optional<Score> score = score_all(reporter);
    if (!score) return;
    state.validation_due = false;
    result = {.outcome = not_finite, .loss = score->loss()};
    if (!std::isfinite(result.loss)) return;
    score_ = score;
    scored_step_ = state.step;
    const bool is_best = record_validation(parts_.config.train, result.loss, state);
    result.outcome = is_best ? best : worse;
    reporter.validation({.step = state.step,
                         .score = *score,
                         .best = is_best,
                         .last = last,
                         .weights = std::string(parts_.averaging.kind())});
    if (!parts_.ranks.first()) return;  // only rank 0 writes
    report_samples(state.step, reporter);
    remember_golden(state.step);
  });
  return result;
}

// Each rank scores a share. All ranks get the sum, or nullopt if any of them was interrupted.
std::optional<Score> Validator::score_all(Reporter& reporter) {
  std::optional<Score> own;
  try {
    own = score_set(parts_.model, parts_.bytes, *parts_.val,
                    {.val_tokens = parts_.config.train.val_tokens,
                     .isolate = parts_.model.config().isolate,
                     .may_diverge = true,
                     .rank = parts_.ranks.rank(),
                     .ranks = parts_.ranks.size(),
                     .on_scored = [&](std::int64_t tokens) { reporter.validating(tokens); }},
                    ProgressOutput::nowhere(), &parts_.interrupt);
  } catch (const Interrupted&) {
    own.reset();
  }
  return score_of_all(parts_.ranks, own);
}

void Validator::report_samples(std::int64_t step, Reporter& reporter) {
  const SampleSettings settings{.count = parts_.samples,
                                .seed = static_cast<std::uint64_t>(parts_.config.train.seed)};
  for (const TextSample& sample : generate_samples(parts_.model, parts_.tokenizer, parts_.val, settings))
    reporter.sample(step, sample.prompt, sample.text);
}

void Validator::remember_golden(std::int64_t step) {
  golden_ = golden_output(parts_.model, parts_.tokenizer);
  golden_step_ = step;
}

CheckpointRecord Validator::record(std::int64_t step) {
  if (golden_step_ != step)
    with_averaged_weights(parts_.model, parts_.averaging, [&] { remember_golden(step); });
  CheckpointRecord record;
  append_golden(golden_, record);
  if (scored_step_ != step) return record;
  record.emplace_back(kValLossKey, fmt::format("{}", score_->loss()));
  if (score_->bits_per_byte() > 0)
    record.emplace_back(kValBpbKey, fmt::format("{}", score_->bits_per_byte()));
  if (val_set_.empty()) val_set_ = parts_.val->fingerprint();
  record.emplace_back(kValSetKey, val_set_);
  record.emplace_back(kValTokensKey, fmt::format("{}", parts_.config.train.val_tokens));
  return record;
}

}  // namespace thimble
