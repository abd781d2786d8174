// Truncates a conversation to the model's context, leaving room for the answer.
//
//   const FittedPrompt prompt = fit_prompt(layout, turns, model.config().context);
//
// Rules for a context of C tokens, where `least` = max(1, min(64, C / 4)) is the minimum room for
// an answer:
//
//   1. If the complete conversation leaves at least `least` tokens, nothing is cut and the answer
//      may use all remaining tokens.
//   2. Otherwise the oldest turns are dropped, each question together with its answers, until a
//      quarter of the context is free. A leading system prompt, the newest user message and
//      everything after that message are kept.
//   3. If fewer than `least` tokens are free then, the beginning of the newest message is cut, at a
//      character boundary, until `least` tokens are free.
//   4. The answer may use the free tokens, but at most a quarter of the context.
//
// bos, the system prompt and the marks around turns are never cut, so the prompt always has the
// layout used in training. If they leave no room for one token of the newest message plus `least`
// tokens for the answer, fit_prompt throws.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "infer/request.h"
#include "tokenizer/chat_layout.h"

namespace thimble {

struct FittedPrompt {
  std::vector<TokenId> ids;         // ends at the start of the assistant's turn
  std::int64_t answer_tokens = 0;   // maximum length of the answer
  std::int64_t tokens_dropped = 0;  // removed from the conversation to make room
};

FittedPrompt fit_prompt(const ChatLayout& layout, std::span<const Turn> turns, std::int64_t context);

// `least` of the rules above.
std::int64_t min_answer_tokens(std::int64_t context);

// The request that answers a conversation; used by `thimble chat` and by the server.
struct ChatRequest {
  Request request;
  std::int64_t tokens_dropped = 0;  // removed from the conversation to make room
};

// `options` supplies what the caller chooses: sampling, stop strings, number of samples,
// log-probabilities. The prompt and the stop ids come from the conversation and its layout. An
// answer has at least one token and at most min(options.max_tokens, FittedPrompt::answer_tokens).
// Special tokens other than stop ids cannot be sampled.
ChatRequest chat_request(const ChatLayout& layout, std::span<const Turn> turns, std::int64_t context,
                         Request options);

// The token that ends a turn, and all other tokens that end a text of this tokenizer.
std::vector<TokenId> chat_stop_ids(const ChatLayout& layout);
// Control, unknown and unused ids, which must not occur inside an answer. Stop ids are not
// included.
std::vector<TokenId> chat_suppressed_ids(const ChatLayout& layout);

}  // namespace thimble
