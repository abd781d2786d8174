// Reference result of a request: decodes one row at a time and searches the complete text for stop
// strings after each token.
#pragma once

#include "infer/generate.h"
#include "infer/plain_decoder.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// The start of the stop string that is completed first, or nullopt.
inline std::optional<std::size_t> stop_in(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops)
      if (std::string_view(text).substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    if (longest > 0) return end - longest;
  }
  return {};
}

inline Sample plain_sample(Model& model, const Tokenizer& tokenizer, const Request& request, int index = 0) {
  Sample sample;
  SamplingOptions options = request.sampling;
  options.seed += static_cast<std::uint64_t>(index);
  Sampler sampler(options, tokenizer.vocab_size(), request.prompt);
  StreamDecoder text(tokenizer, request.starts_text);
  PlainDecoder decoder(model);
  const auto slide = [&](std::vector<TokenId> window) {
    sample.usage.dropped_tokens += slide_window(window, model.config().context, tokenizer.special().bos);
    decoder.restart(window);
  };
  if (std::cmp_greater(request.prompt.size(), model.config().context))
    slide(request.prompt);
  else
    decoder.append(request.prompt);
  std::vector<std::size_t> begins;
  const auto finish = [&](FinishReason reason) {
    if (reason == FinishReason::stop && !stop_in(sample.text, request.stop_strings))
      sample.text += text.finish();
    if (const auto cut = stop_in(sample.text, request.stop_strings)) {
      sample.text.resize(*cut);
      while (!sample.tokens.empty() && begins[sample.tokens.size() - 1] >= *cut) sample.tokens.pop_back();
    }
    sample.finish = reason;
    return sample;
  };
  for (std::int64_t count = 0; count < request.max_tokens; ++count) {
    const bool early = count < request.min_tokens;
    const TokenId next =
        sampler.sample(decoder.logits(), early ? std::span(request.stop_ids) : std::span<const TokenId>());
    if (std::ranges::find(request.stop_ids, next) != request.stop_ids.end())
      return finish(FinishReason::stop);
    begins.push_back(sample.text.size());
    sample.tokens.push_back(
        request.logprobs == kNoLogprobs
            ? TokenScore{next}
            : score_token(decoder.logits(), next, request.logprobs, tokenizer.vocab_size()));
    sample.text += text.push(next);
    if (stop_in(sample.text, request.stop_strings)) return finish(FinishReason::stop);
    if (decoder.room() > 0) {
      decoder.append(std::span(&next, 1));
    } else {
      if (!request.slides || count + 1 == request.max_tokens) break;
      std::vector<TokenId> window = decoder.tokens();
      window.push_back(next);
      slide(window);
    }
  }
  return finish(FinishReason::length);
}

inline std::vector<TokenId> ids_of(const std::vector<TokenScore>& scores) {
  std::vector<TokenId> ids;
  for (const TokenScore& score : scores) ids.push_back(score.id);
  return ids;
}

}  // namespace thimble
