#include "infer/request.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/utf8.h"

namespace thimble {

namespace {

// The logits must contain a finite one; others may be -infinity.
double log_sum_exp(std::span<const float> logits) {
  const float largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += static_cast<double>(std::exp(logit - largest));
  return static_cast<double>(largest) + std::log(sum);
}

}  // namespace

void check_finite(std::span<const float> logits) {
  constexpr std::uint32_t kExponent = 0x7f800000;  // all ones: infinity or NaN
  bool finite = true;
  for (const float logit : logits) finite &= (std::bit_cast<std::uint32_t>(logit) & kExponent) != kExponent;
  check(finite, Hint{"the checkpoint is damaged, or its training diverged"},
        "the model's output is not finite");
}

namespace {

TokenScore score_checked(std::span<const float> logits, TokenId id, int top, std::int64_t allowed) {
  const double total = log_sum_exp(logits);
  const auto logprob = [&](TokenId of) {
    return static_cast<float>(static_cast<double>(logits[static_cast<std::size_t>(of)]) - total);
  };
  TokenScore score{.id = id, .logprob = logprob(id)};
  if (top <= 0) return score;
  std::vector<TokenId> ids(std::min(logits.size(), static_cast<std::size_t>(allowed)));
  std::iota(ids.begin(), ids.end(), 0);
  const auto count = std::min(ids.size(), static_cast<std::size_t>(top));
  std::ranges::partial_sort(ids, ids.begin() + static_cast<std::ptrdiff_t>(count), [&](TokenId a, TokenId b) {
    const float la = logits[static_cast<std::size_t>(a)], lb = logits[static_cast<std::size_t>(b)];
    return la != lb ? la > lb : a < b;
  });
  for (const TokenId likely : std::span(ids).first(count))
    if (std::isfinite(logits[static_cast<std::size_t>(likely)]))
      score.top.emplace_back(likely, logprob(likely));
  return score;
}

}  // namespace

TokenScore score_token(std::span<const float> logits, TokenId id, int top, std::int64_t allowed) {
  check_finite(logits);
  return score_checked(logits, id, top, allowed);
}

TokenScore score_token(std::span<const float> logits, TokenId id, int top, const AllowedTokens& allowed) {
  std::vector<float> kept(logits.begin(), logits.end());
  allowed.keep(kept);
  return score_checked(kept, id, top, std::ssize(kept));
}

namespace {

constexpr int kMaxSamples = 1000;

void check_stop_strings(const Request& request, const Tokenizer* tokenizer) {
  const auto& strings = request.stop_strings;
  check(strings.empty() || tokenizer != nullptr, Field{"stop"},
        "stop: stop strings need a tokenizer, but this model has none");
  check(strings.size() <= kMaxStopStrings, Field{"stop"}, "stop: at most {} strings, got {}", kMaxStopStrings,
        strings.size());
  for (const std::string& string : strings) {
    check(!string.empty(), Field{"stop"}, "stop: a string must not be empty");
    check(string.size() <= kMaxStopStringBytes, Field{"stop"}, "stop: a string has at most {} bytes, got {}",
          kMaxStopStringBytes, string.size());
    check(is_utf8(string), Field{"stop"}, "stop: a string must be valid UTF-8");
  }
}

}  // namespace

void check_request(const Request& request, const ModelConfig& config, const Tokenizer* tokenizer) {
  const auto size = static_cast<std::int64_t>(request.prompt.size());
  check(size > 0, Field{"prompt", Hint{"pass a prompt that is not empty"}}, "prompt must not be empty");
  check(size <= config.context || (request.slides && !request.score_prompt), Hint{"shorten the prompt"},
        "the prompt has {} tokens, but the model's context is {}", size, config.context);
  for (const TokenId id : request.prompt)
    check(id >= 0 && id < config.vocab_size, Field{"prompt"},
          "prompt: the vocabulary has {} tokens, got id {}", config.vocab_size, id);
  check_sampling(request.sampling, config.vocab_size);
  check(request.samples >= 1 && request.samples <= kMaxSamples, Field{"n"},
        "n must be between 1 and {}, got {}", kMaxSamples, request.samples);
  check(request.max_tokens >= 0, Field{"max_tokens"}, "max_tokens must be >= 0, got {}", request.max_tokens);
  check(request.min_tokens >= 0, Field{"min_tokens"}, "min_tokens must be >= 0, got {}", request.min_tokens);
  check(request.logprobs >= kNoLogprobs && request.logprobs <= kMaxTopLogprobs, Field{"logprobs"},
        "logprobs must be between 0 and {}, got {}", kMaxTopLogprobs, request.logprobs);
  for (const TokenId id : request.stop_ids)
    check(id >= 0 && id < config.vocab_size, "stop ids: the vocabulary has {} tokens, got id {}",
          config.vocab_size, id);
  check_stop_strings(request, tokenizer);
}

std::string_view name_of(FinishReason reason) {
  constexpr std::array<std::string_view, 4> kNames = {"stop", "length", "cancelled", "error"};
  return kNames[static_cast<std::size_t>(reason)];
}

Request text_request(const Tokenizer& tokenizer, std::string_view prompt) {
  Request request;
  const auto bos = tokenizer.special().bos;
  if (bos && (prompt.empty() || tokenizer.adds_bos())) request.prompt.push_back(*bos);
  tokenizer.encode(prompt, request.prompt);
  check(!request.prompt.empty(), Hint{"pass a prompt that is not empty"},
        "the tokenizer has no bos token and the prompt is empty");
  request.stop_ids = end_ids(tokenizer);
  request.starts_text = prompt.empty();
  return request;
}

namespace {

// Used by thimble, ChatML (Qwen), Llama 3, Gemma, Phi and GPT-2.
constexpr std::array<std::string_view, 8> kEnds = {"<end_turn>",      "<|im_end|>",    "<|eot_id|>",
                                                   "<|end_of_text|>", "<end_of_turn>", "<|end|>",
                                                   "<|eom_id|>",      "<|endoftext|>"};

}  // namespace

std::vector<TokenId> end_ids(const Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  const SpecialIds& special = tokenizer.special();
  if (const auto end = special.eos ? special.eos : special.bos) ids.push_back(*end);
  for (const std::string_view name : kEnds) {
    const auto id = tokenizer.id_of(name);
    // Skip ordinary tokens that spell such a name, and a bos that has such a name (GPT-2's
    // <|endoftext|>) when the tokenizer also has an eos.
    if (!id || tokenizer.token_type(*id) != TokenType::control || id == special.bos) continue;
    if (std::ranges::find(ids, *id) == ids.end()) ids.push_back(*id);
  }
  for (const TokenId id : special.more_ends)
    if (tokenizer.contains(id) && std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  return ids;
}

std::vector<TokenId> textless_ids(const Tokenizer& tokenizer, std::span<const TokenId> ends) {
  std::vector<TokenId> ids;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const TokenType type = tokenizer.token_type(id);
    const bool textless =
        type == TokenType::control || type == TokenType::unknown || type == TokenType::unused;
    if (textless && !std::ranges::count(ends, id)) ids.push_back(id);
  }
  return ids;
}

std::int64_t slide_window(std::vector<TokenId>& tokens, std::int64_t context, std::optional<TokenId> bos) {
  const auto kept = std::max<std::int64_t>(1, context - std::max<std::int64_t>(1, context / 4));
  const std::int64_t removed = std::ssize(tokens) - kept;
  if (removed <= 0) return 0;
  const bool keeps_bos = kept > 1 && bos && tokens.front() == *bos;
  const auto first = tokens.begin() + (keeps_bos ? 1 : 0);
  tokens.erase(first, first + removed);
  return removed;
}

}  // namespace thimble
