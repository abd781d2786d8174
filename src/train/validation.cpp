#include "train/validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "infer/request.h"
#include "infer/sampler.h"
#include "model/rows.h"
#include "tokenizer/chat_layout.h"
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

std::optional<Score> validation_score(const TrainedModel& trained, Communicator& ranks, const TokenSet& val,
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

namespace {

// Scores a row of fixed length again and again instead of decoding: that runs on a card too, and takes one program.
GoldenOutput greedy(Model& model, TokenId bos, TokenId allowed) {
  const std::int64_t T = std::min(kGoldenTokens, model.config().context);
  const auto V = static_cast<std::size_t>(model.config().vocab_size);
  std::vector<std::int32_t> row(static_cast<std::size_t>(T), bos);
  GoldenOutput golden;
  for (std::size_t at = 0; at < row.size(); ++at) {
    const std::vector<float> logits = model.score(grid_rows(model.config(), T, row), true).logits;
    const auto here = std::span(logits).subspan(at * V, V);
    if (!std::ranges::all_of(here, [](float logit) { return std::isfinite(logit); })) return {};
    const auto choices = here.first(static_cast<std::size_t>(allowed));
    const auto id = static_cast<TokenId>(std::ranges::max_element(choices) - choices.begin());
    golden.ids.push_back(id);
    golden.nats += nats_of(here, id);
    if (at + 1 < row.size()) row[at + 1] = id;
  }
  return golden;
}

}  // namespace

double nats_of(std::span<const float> logits, TokenId id) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - largest);
  return largest + std::log(sum) - double{logits[static_cast<std::size_t>(id)]};
}

GoldenOutput golden_output(const TrainedModel& trained, const Tokenizer& tokenizer) {
  GoldenOutput golden;
  {
    const AverageInPlace average(trained.averaging, trained.model.weights());
    if (trained.averaging.available()) trained.model.weights_changed();
    golden = greedy(trained.model, bos_of(tokenizer), tokenizer.vocab_size());
  }
  if (trained.averaging.available()) trained.model.weights_changed();
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
    const auto id = number_in<TokenId>(ids.substr(begin, end - begin));
    check(id && *id >= 0 && *id < vocab_size && golden.ids.size() < static_cast<std::size_t>(kGoldenTokens),
          "the golden output holds '{}', expected at most {} ids below {}",
          ids.substr(begin, std::min<std::size_t>(end - begin, 40)), kGoldenTokens, vocab_size);
    golden.ids.push_back(*id);
    begin = end + 1;
  }
  const auto sum = number_in<double>(nats);
  check(sum && std::isfinite(*sum) && *sum >= 0, "the golden output has '{}' nats, expected a number",
        nats.substr(0, 40));
  golden.nats = *sum;
  return golden;
}

namespace {

constexpr std::uint64_t kTokensToLookAt = 1 << 14;  // of the validation set, for questions
constexpr std::int64_t kLeastAnswer = 16;           // tokens that must fit behind a question
constexpr float kTemperature = 0.8f;

using Ids = std::vector<TokenId>;

// From bos to <assistant>: the beginnings of conversations that leave room for an answer.
std::vector<Ids> questions_in(const TokenSet& val, const ChatTokens& marks, std::int64_t count,
                              std::int64_t longest) {
  std::vector<Ids> questions;
  Ids at_hand;
  for (std::uint64_t i = 0; i < std::min(val.size(), kTokensToLookAt); ++i) {
    const TokenId id = val.at(i);
    if (id == marks.bos) at_hand.clear();
    if (id != marks.bos && at_hand.empty()) continue;
    at_hand.push_back(id);
    if (id != marks.assistant) continue;
    if (static_cast<std::int64_t>(at_hand.size()) <= longest) questions.push_back(at_hand);
    if (static_cast<std::int64_t>(questions.size()) == count) break;
    at_hand.clear();
  }
  return questions;
}

// Scores a row of fixed length again and again instead of decoding: that runs on a card too, and takes one program.
std::optional<Ids> continued(Model& model, const Ids& prompt, Sampler sampler, const Ids& ends) {
  const std::int64_t T = std::min(kSampleTokens, model.config().context);
  const auto V = static_cast<std::size_t>(model.config().vocab_size);
  std::vector<std::int32_t> row(static_cast<std::size_t>(T), prompt.front());
  std::ranges::copy(prompt, row.begin());
  Ids said;
  for (std::size_t at = prompt.size(); at < row.size(); ++at) {
    const std::vector<float> logits = model.score(grid_rows(model.config(), T, row), true).logits;
    const auto here = std::span(logits).subspan((at - 1) * V, V);
    if (!std::ranges::all_of(here, [](float logit) { return std::isfinite(logit); })) return std::nullopt;
    const TokenId id = sampler.sample(here);
    if (std::ranges::count(ends, id) > 0) break;
    said.push_back(id);
    row[at] = id;
  }
  return said;
}

std::vector<SaidText> say(Model& model, const Tokenizer& tokenizer, const TokenSet* val,
                          const SampleSettings& settings) {
  const std::int64_t T = std::min(kSampleTokens, model.config().context);
  const bool chats = val && val->marks().answers_only;
  const std::vector<Ids> prompts =
      chats ? questions_in(*val, *val->marks().answers_only, settings.count, T - kLeastAnswer)
            : std::vector<Ids>(static_cast<std::size_t>(settings.count), Ids{bos_of(tokenizer)});
  const Ids ends = end_ids(tokenizer);
  std::vector<SaidText> texts;
  for (const Ids& prompt : prompts) {
    const SamplingOptions options{.temperature = chats ? 0 : kTemperature,
                                  .seed = settings.seed + texts.size()};
    const auto said = continued(model, prompt, Sampler(options, tokenizer.vocab_size()), ends);
    if (!said) return {};
    const auto question = std::span(prompt).subspan(1);  // without bos
    texts.push_back({.prompt = tokenizer.decode(question, {.keep_special = true}),
                     .text = tokenizer.decode(*said, {.keep_special = true})});
  }
  return texts;
}

}  // namespace

std::vector<SaidText> say_samples(const TrainedModel& trained, const Tokenizer& tokenizer,
                                  const TokenSet* val, const SampleSettings& settings) {
  if (settings.count == 0) return {};
  std::vector<SaidText> texts;
  {
    const AverageInPlace average(trained.averaging, trained.model.weights());
    if (trained.averaging.available()) trained.model.weights_changed();
    texts = say(trained.model, tokenizer, val, settings);
  }
  if (trained.averaging.available()) trained.model.weights_changed();
  return texts;
}

}  // namespace thimble
