// The request that answers a conversation: for `thimble chat` and for the server.
#pragma once

#include <cstdint>
#include <span>

#include "infer/chat_context.h"
#include "infer/request.h"

namespace thimble {

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
