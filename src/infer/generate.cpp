#include "infer/generate.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "tokenizer/stream_decoder.h"

namespace thimble {

namespace {

constexpr std::size_t kPrefillRows = 64;

}  // namespace

std::span<const float> Sequence::append(std::span<const std::int32_t> tokens) {
  check(!tokens.empty(), "[generate] there is nothing to append");
  check(static_cast<std::int64_t>(tokens.size()) <= room(),
        "[generate] {} tokens, the context has room for {}", tokens.size(), room());
  Tensor logits;
  while (!tokens.empty()) {
    const std::size_t count = std::min(tokens.size(), kPrefillRows);
    std::vector<DecodeRow> rows(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t n = tokens_.size();
      rows[i] = {.token = tokens[i],
                 .previous = n > 0 ? tokens_[n - 1] : -1,
                 .before_previous = n > 1 ? tokens_[n - 2] : -1,
                 .position = static_cast<std::int32_t>(n),
                 .slot = slot_,
                 .wants_logits = i + 1 == count};
      tokens_.push_back(tokens[i]);
    }
    logits = model_.decode(decode_rows(model_.config(), cache_.slots(), rows), cache_);
    tokens = tokens.subspan(count);
  }
  return {logits.row<float>(0), static_cast<std::size_t>(logits.cols)};
}

Sample generate(Model& model, const Tokenizer& tokenizer, std::string_view prompt,
                const GenerateOptions& options, const std::function<void(std::string_view)>& show,
                const Interrupt* interrupt) {
  const SpecialIds& special = tokenizer.special();
  std::vector<std::int32_t> ids;
  if (special.bos) ids.push_back(*special.bos);
  tokenizer.encode(prompt, ids);
  check(!ids.empty(), Hint{"give a prompt"},
        "the tokenizer has no bos token, and there is no prompt to begin with");
  check(static_cast<std::int64_t>(ids.size()) < model.config().context, Hint{"shorten the prompt"},
        "the prompt has {} tokens, the model's context is {}", ids.size(), model.config().context);

  // Documents end with eos; where a tokenizer has none, with the bos of the next.
  const auto end = special.eos ? special.eos : special.bos;
  KvCache cache(model.config(), 1, model.dtype());
  Sequence sequence(model, cache, 0);
  Sampler sampler(options.sampler);
  StreamDecoder decoder(tokenizer, prompt.empty());
  Sample sample{.text = {}, .tokens = {}, .finish_reason = "length"};
  const auto emit = [&](const std::string& piece) {
    sample.text += piece;
    if (show && !piece.empty()) show(piece);
  };
  std::span<const float> logits = sequence.append(ids);
  while (static_cast<std::int64_t>(sample.tokens.size()) < options.max_tokens) {
    if (interrupt) interrupt->throw_if_asked();
    const std::int32_t next = sampler.sample(logits, tokenizer.vocab_size());
    if (next == end) {
      sample.finish_reason = "stop";
      break;
    }
    sample.tokens.push_back(next);
    emit(decoder.push(next));
    if (sequence.room() == 0) break;
    logits = sequence.append(std::array{next});
  }
  emit(decoder.finish());
  return sample;
}

}  // namespace thimble
