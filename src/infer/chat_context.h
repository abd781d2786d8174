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

}  // namespace thimble
