// The bodies of /v1/chat/completions and /v1/completions, understood and checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/config.h"
#include "infer/request.h"
#include "infer/sampler.h"
#include "tokenizer/chat_layout.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

class Fields;

// What the routes know of the model: everything but how to run it. Any thread may read it.
struct ServedModel {
  std::string name;  // what clients see
  ModelConfig config;
  const Tokenizer* tokenizer = nullptr;
  std::optional<ChatLayout> layout = {};   // absent: it was not taught to chat
  SamplingOptions defaults = {};           // where a request says nothing
  std::optional<std::uint64_t> seed = {};  // the same; absent: a new one for each request
  std::int64_t created = 0;                // Unix time
};

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

// A conversation, as OpenAI's clients send it.
// Reads "messages": roles system, developer (the same), user and assistant; contents are strings or arrays of text
// parts. The last message is not the assistant's. Throws ApiError, naming the field.
Conversation parse_messages(Fields& fields);

// How a request wants its tokens chosen: the names of OpenAI, llama.cpp and vLLM.
// What is absent comes from `model`.
SamplingOptions read_sampling(Fields& fields, const ServedModel& model);

// "stop": a string or an array of them.
std::vector<std::string> read_stops(Fields& fields);

}  // namespace thimble
