// What is asked of a batcher, and what it answers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/config.h"
#include "infer/sampler.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// How likely the model finds a token: log-probabilities, natural, of softmax over the whole vocabulary as the model
// says it, before temperature, penalties and filters.
struct TokenScore {
  TokenId id = -1;
  // Only if asked for; NaN: unknown (the first token of a prompt follows nothing).
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top = {};  // the likeliest ids and theirs, best first
};

// `top`: how many of the likeliest to name, among ids below `allowed`. Logits that are not finite are an error.
TokenScore score_token(std::span<const float> logits, TokenId id, int top, std::int64_t allowed);

// Throws the error for a model whose output is not finite.
void check_finite(std::span<const float> logits);

using RequestId = std::uint64_t;

inline constexpr int kNoLogprobs = -1;
inline constexpr int kMostTopLogprobs = 100;
inline constexpr std::size_t kMostStopStrings = 64;
inline constexpr std::size_t kLongestStopString = 4096;  // bytes

struct Request {
  std::vector<TokenId> prompt;  // bos and all; not empty, at most the context
  SamplingOptions sampling = {};
  int samples = 1;  // continuations of the one prompt; sample i has seed + i. The prompt is read once
  std::int64_t max_tokens = 256;  // of each sample; 0: none, the prompt is only read (and scored, if asked)
  std::int64_t min_tokens = 0;    // stop ids cannot be sampled before; stop strings can still end it
  std::vector<TokenId> stop_ids = {};          // end a sample and are no part of it: see end_ids
  std::vector<std::string> stop_strings = {};  // valid UTF-8. The text ends before the first that is complete
  int logprobs = kNoLogprobs;                  // 0: of the chosen token; N: and of the N likeliest
  bool score_prompt =
      false;  // log-probabilities of the prompt's tokens, as `logprobs` says (at least chosen)
  bool starts_text =
      false;  // the answer's first token begins a text of its own: SentencePiece then drops the
              // space before the first word. True after bos alone and in chats
};

// Throws an Error with its field(): "max_tokens must be >= 0, got -1". May be called by any thread.
// `tokenizer`: nullptr where the batcher has none.
void check_request(const Request& request, const ModelConfig& config, const Tokenizer* tokenizer);

// stop: the model ended it, or a stop string did. length: max_tokens, or the context is full.
enum class FinishReason { stop, length, cancelled, error };
std::string_view name_of(FinishReason reason);  // "stop", ...

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;  // of them: found in a slot and not read again
  std::int64_t generated_tokens =
      0;                     // all that were sampled: the one that ended it, and those a stop string cut, too
  double queue_seconds = 0;  // until a slot was free
  double prompt_seconds = 0;  // from then until the first token was chosen
  double decode_seconds = 0;  // from then until the end

  double seconds_to_first_token() const { return queue_seconds + prompt_seconds; }
};

// News of one sample. Joined over a sample's events, `text` is its whole text and `tokens` its tokens.
struct Event {
  RequestId request = 0;
  int sample = 0;
  // New: whole characters only, and never a piece of a stop string. May be empty. A character inside of which a sample
  // is cut (length, cancelled) is left out.
  std::string text = {};
  // New: those whose text begins in the texts so far. Scores only if asked for.
  std::vector<TokenScore> tokens = {};
  std::vector<TokenScore> prompt = {};      // if score_prompt: once, all of it, in sample 0's first event
  std::optional<FinishReason> finish = {};  // this is the sample's last event; then also:
  Usage usage = {};
  std::optional<std::string> stop_string = {};  // the one that ended it
  std::optional<Error> error = {};              // finish == error: why
};

// The request that continues a text: for `thimble generate` and for the server.
// The prompt, bos in front where the tokenizer adds it (or there is nothing else), continued until the text ends
// (end_ids below).
Request text_request(const Tokenizer& tokenizer, std::string_view prompt);

// Ids after which nothing follows. They come from the model's tokenizer, never from a list of numbers.
// eos, or bos where a tokenizer has no eos (DESIGN: the last token of a document is the bos of the next); and the
// control tokens that end a turn or a text under the names everybody uses: <end_turn>, <|im_end|>, <|eot_id|>, ...
std::vector<TokenId> end_ids(const Tokenizer& tokenizer);

}  // namespace thimble
