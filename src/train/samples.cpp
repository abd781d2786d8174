#include "train/samples.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "infer/request.h"
#include "infer/sampler.h"
#include "model/rows.h"
#include "tokenizer/chat_layout.h"

namespace thimble {

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

std::vector<SaidText> say_samples(const Trained& trained, const Tokenizer& tokenizer, const TokenSet* val,
                                  const SampleSettings& settings) {
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
