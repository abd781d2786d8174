// A conversation that fits the context, with room for the answer.
//
//   const FittedPrompt prompt = fit_prompt(layout, turns, model.config().context);
//
// The rules, for a context of C tokens. `least` = min(64, C / 4), at least 1: room that an answer must have.
//
//   1. If the whole conversation leaves `least` tokens, nothing is cut and the answer may take all that is left.
//   2. Else the oldest turns go, whole ones and each question with its answers, until a quarter of the context is
//      left. A system prompt at the beginning stays, and so does the newest message of the user and what follows it.
//   3. If not even `least` is left then, the newest message loses its head, characters whole, until it is.
//   4. The answer gets what is left, at most a quarter of the context.
//
// bos, the system prompt and the marks around turns are always there: what a model sees is always a conversation as
// training laid it out. Where they alone leave no room for one token of the message and `least` for the answer, it is an
// error.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "infer/request.h"
#include "tokenizer/chat_layout.h"

namespace thimble {

struct FittedPrompt {
  std::vector<TokenId> ids;         // ends where the assistant speaks
  std::int64_t answer_tokens = 0;   // that it may say, at most
  std::int64_t tokens_dropped = 0;  // of the conversation, to make room
};

FittedPrompt fit_prompt(const ChatLayout& layout, std::span<const Turn> turns, std::int64_t context);

// `least` of the rules above.
std::int64_t least_answer_tokens(std::int64_t context);

// The request that answers a conversation: for `thimble chat` and for the server.
struct ChatRequest {
  Request request;
  std::int64_t tokens_dropped = 0;  // of the conversation, to make room (chat_context.h)
};

// `asked` brings what the caller chooses: sampling, stop strings, samples, log-probabilities. From the conversation
// come the prompt and what ends an answer. Answers have at least one token, at most asked.max_tokens and what fits;
// no special token but the one that ends it can be sampled.
ChatRequest chat_request(const ChatLayout& layout, std::span<const Turn> turns, std::int64_t context,
                         Request asked);

// The end of a turn, and what else ends a text of this tokenizer.
std::vector<TokenId> chat_stop_ids(const ChatLayout& layout);
// Ids that have no place inside an answer: special, unknown and unused ones. Stop ids are not among them.
std::vector<TokenId> chat_suppressed_ids(const ChatLayout& layout);

}  // namespace thimble
