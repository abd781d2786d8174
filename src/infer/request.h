// The input of a batcher (Request) and its output (Event).
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

class Constraint;

// Natural log-probabilities of a token: log-softmax of the raw logits over the full vocabulary,
// before temperature, penalties and filters. Under a constraint: over the tokens that it allows.
struct TokenScore {
  TokenId id = -1;
  // Set only if log-probabilities were requested. NaN for the first token of a prompt, which has no
  // predecessor.
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top = {};  // the most likely ids, descending
};

// `top`: number of most likely ids to return, among ids below `allowed`. Throws if a logit is not
// finite.
TokenScore score_token(std::span<const float> logits, TokenId id, int top, std::int64_t allowed);
// As if the logits of all other ids were -infinity.
TokenScore score_token(std::span<const float> logits, TokenId id, int top, const AllowedTokens& allowed);

// Throws if a logit is not finite.
void check_finite(std::span<const float> logits);

using RequestId = std::uint64_t;

inline constexpr int kNoLogprobs = -1;
inline constexpr int kMaxTopLogprobs = 100;
inline constexpr std::size_t kMaxStopStrings = 64;
inline constexpr std::size_t kMaxStopStringBytes = 4096;  // bytes

struct Request {
  std::vector<TokenId> prompt;  // including bos; 1 to `context` tokens, or more if `slides`
  SamplingOptions sampling = {};
  int samples = 1;  // continuations of the prompt, which is processed once; sample i uses seed + i
  std::int64_t max_tokens = 256;               // per sample; 0: only process the prompt
  std::int64_t min_tokens = 0;                 // no stop id before; stop strings still apply
  std::vector<TokenId> stop_ids = {};          // end a sample, not part of its text; see end_ids
  std::vector<std::string> stop_strings = {};  // valid UTF-8; the text ends before the first match
  int logprobs = kNoLogprobs;                  // 0: chosen token only; N: and the N most likely
  // Also return log-probabilities of the prompt's tokens; `logprobs` gives the number of
  // alternatives.
  bool score_prompt = false;
  // The generated text belongs to this grammar, unless it ends early (length, stop string). Stop
  // ids are possible where it is complete, and the sample ends where nothing can follow.
  std::shared_ptr<Constraint> constraint = nullptr;
  bool raw_logprobs = false;  // log-probabilities as without the constraint
  // The first generated token begins a new text (prompt is bos alone, or a chat), so SentencePiece
  // drops the space before the first word.
  bool starts_text = false;
  // When the context is full, drop the oldest tokens and continue, instead of ending the sample.
  // See slide_window().
  bool slides = false;
};

// Throws an Error whose field() is set: "max_tokens must be >= 0, got -1". May be called by any
// thread. `tokenizer` is nullptr if the batcher has none.
void check_request(const Request& request, const ModelConfig& config, const Tokenizer* tokenizer);

// stop: ended by a stop id or a stop string. length: max_tokens reached, or context full if the
// request does not slide.
enum class FinishReason { stop, length, cancelled, error };
std::string_view name_of(FinishReason reason);  // "stop", ...

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;  // prompt tokens reused from a slot
  // All sampled tokens, including the final stop id and tokens removed by a stop string.
  std::int64_t generated_tokens = 0;
  std::int64_t dropped_tokens = 0;  // if the request slides: prompt and generated tokens dropped
  double queue_seconds = 0;         // waiting for a slot
  double prompt_seconds = 0;        // from getting a slot to sampling the first token
  double decode_seconds = 0;        // from the first token to the last

  double seconds_to_first_token() const { return queue_seconds + prompt_seconds; }
};

// Progress of one sample. Concatenating `text` and `tokens` over all events of a sample gives its
// complete text and tokens.
struct Event {
  RequestId request = 0;
  int sample = 0;
  // New text since the last event; may be empty. Contains complete characters only and never part
  // of a stop string. If the sample ends inside a character (length, cancelled), that character is
  // dropped.
  std::string text = {};
  // New tokens: those whose text begins within the text sent so far. Scored only if requested.
  std::vector<TokenScore> tokens = {};
  std::vector<TokenScore> prompt = {};      // if score_prompt: complete, in sample 0's first event
  std::optional<FinishReason> finish = {};  // set in the sample's last event, together with:
  Usage usage = {};
  std::optional<std::string> stop_string = {};  // the one that ended the sample
  std::optional<Error> error = {};              // set if finish == error
};

// The request that continues a text; used by `thimble generate` and by the server. Prepends bos if
// the tokenizer adds it or the prompt is empty, and stops at end_ids().
Request text_request(const Tokenizer& tokenizer, std::string_view prompt);

// Ids that end a text: eos, or bos if the tokenizer has no eos (training data separates documents
// with bos), and all control tokens with a well-known name for the end of a turn or text, such as
// <end_turn>, <|im_end|> or <|eot_id|>; and SpecialIds::more_ends.
std::vector<TokenId> end_ids(const Tokenizer& tokenizer);

// Control, unknown and unused ids except `ends`: ids without text, which a text must not contain.
std::vector<TokenId> textless_ids(const Tokenizer& tokenizer, std::span<const TokenId> ends);

// The sliding window: removes the oldest tokens until a quarter of the context is free. A leading
// bos is kept, so the rest looks like the beginning of a document. Returns the number of removed
// tokens.
std::int64_t slide_window(std::vector<TokenId>& tokens, std::int64_t context, std::optional<TokenId> bos);

}  // namespace thimble
