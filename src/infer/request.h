// What is asked of a batcher, and what it answers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "infer/sampler.h"
#include "infer/token_score.h"
#include "model/config.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

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
  std::vector<TokenId> stop_ids = {};          // end a sample and are no part of it: see end_ids.h
  std::vector<std::string> stop_strings = {};  // valid UTF-8. The text ends before the first that is complete
  int logprobs = kNoLogprobs;                  // 0: of the chosen token; N: and of the N likeliest
  bool score_prompt =
      false;  // log-probabilities of the prompt's tokens, as `logprobs` says (at least chosen)
  bool starts_text =
      false;  // the answer's first token begins a text of its own: SentencePiece then drops the
              // space before the first word. True after bos alone and in chats
};

// Throws an Error that names the field: "max_tokens must be >= 0, got -1". May be called by any thread.
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

}  // namespace thimble
