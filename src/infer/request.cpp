#include "infer/request.h"

#include <array>

#include "tokenizer/unicode.h"

namespace thimble {

namespace {

constexpr int kMostSamples = 1000;

void check_stop_strings(const Request& request, const Tokenizer* tokenizer) {
  const auto& strings = request.stop_strings;
  check(strings.empty() || tokenizer != nullptr, "stop: this model has no tokenizer, and so no text");
  check(strings.size() <= kMostStopStrings, "stop: at most {} strings, got {}", kMostStopStrings,
        strings.size());
  for (const std::string& string : strings) {
    check(!string.empty(), "stop: a string must not be empty");
    check(string.size() <= kLongestStopString, "stop: a string has at most {} bytes, got {}",
          kLongestStopString, string.size());
    check(is_utf8(string), "stop: a string must be valid UTF-8");
  }
}

}  // namespace

void check_request(const Request& request, const ModelConfig& config, const Tokenizer* tokenizer) {
  const auto size = static_cast<std::int64_t>(request.prompt.size());
  check(size > 0, Hint{"give a prompt"}, "prompt must not be empty");
  check(size <= config.context, Hint{"shorten the prompt"},
        "the prompt has {} tokens, the model's context is {}", size, config.context);
  for (const TokenId id : request.prompt)
    check(id >= 0 && id < config.vocab_size, "prompt: the vocabulary has {} tokens, got id {}",
          config.vocab_size, id);
  check_sampling(request.sampling, config.vocab_size);
  check(request.samples >= 1 && request.samples <= kMostSamples, "n must be between 1 and {}, got {}",
        kMostSamples, request.samples);
  check(request.max_tokens >= 0, "max_tokens must be >= 0, got {}", request.max_tokens);
  check(request.min_tokens >= 0, "min_tokens must be >= 0, got {}", request.min_tokens);
  check(request.logprobs >= kNoLogprobs && request.logprobs <= kMostTopLogprobs,
        "logprobs must be between 0 and {}, got {}", kMostTopLogprobs, request.logprobs);
  for (const TokenId id : request.stop_ids)
    check(id >= 0 && id < config.vocab_size, "stop ids: the vocabulary has {} tokens, got id {}",
          config.vocab_size, id);
  check_stop_strings(request, tokenizer);
}

std::string_view name_of(FinishReason reason) {
  constexpr std::array<std::string_view, 4> kNames = {"stop", "length", "cancelled", "error"};
  return kNames[static_cast<std::size_t>(reason)];
}

}  // namespace thimble
