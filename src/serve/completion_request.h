// The bodies of /v1/chat/completions and /v1/completions, understood and checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "infer/request.h"
#include "serve/served_model.h"

namespace thimble {

enum class Dialect { chat, text };

inline constexpr int kMostChoices = 128;                // of one HTTP request
inline constexpr std::int64_t kDefaultTextTokens = 16;  // OpenAI's

struct CompletionRequest {
  Dialect dialect = Dialect::text;
  bool stream = false;
  bool include_usage = false;  // of a stream: in a chunk of its own at the end
  bool logprobs = false;
  int samples = 1;  // of each prompt

  // One per prompt; the first three lists go together.
  std::vector<Request> prompts = {};
  std::vector<std::string> echoed = {};   // what is repeated before the answer; empty list: nothing
  std::vector<std::size_t> unshown = {};  // tokens at the prompt's start that are no part of its text (bos)
  std::int64_t tokens_dropped = 0;        // of a conversation, to make room

  std::string log_text = {};  // the prompt, for --log-prompts
};

// Both throw ApiError, status 400, naming the field.
CompletionRequest parse_chat_completion(const Json& body, const ServedModel& model);
CompletionRequest parse_text_completion(const Json& body, const ServedModel& model);

// 400, as llama.cpp has it.
class ApiError;
ApiError context_exceeded(const std::string& message, std::int64_t prompt_tokens, std::int64_t context);

}  // namespace thimble
