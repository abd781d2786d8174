// Parses and validates the bodies of /v1/chat/completions and /v1/completions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/config.h"
#include "infer/constraint.h"
#include "infer/request.h"
#include "infer/sampler.h"
#include "tokenizer/chat_layout.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

class Fields;

// What the routes need about the model, except how to run it. Read-only, so any thread may use it.
struct ServedModel {
  std::string name;  // as shown to clients
  ModelConfig config;
  const Tokenizer* tokenizer = nullptr;
  std::optional<ChatLayout> layout = {};   // absent: not a chat model
  SamplingOptions defaults = {};           // for fields a request does not set
  std::optional<std::uint64_t> seed = {};  // default seed; absent: random per request
  std::int64_t created = 0;                // Unix time
  std::size_t longest_token = 16;          // bytes
  std::size_t max_answer_bytes = 64 << 20;
  std::shared_ptr<ConstraintCompiler> constraints = {};  // absent: nothing is kept between requests
};

enum class Dialect { chat, text };

inline constexpr int kMaxChoices = 128;                 // per HTTP request
inline constexpr std::int64_t kDefaultTextTokens = 16;  // OpenAI's default

struct CompletionRequest {
  Dialect dialect = Dialect::text;
  bool stream = false;
  bool include_usage = false;  // of a stream: send usage in a final chunk
  bool logprobs = false;
  int samples = 1;  // of each prompt

  // One element per prompt in each of the next three lists.
  std::vector<Request> prompts = {};
  std::vector<std::string> echoed = {};                // text repeated before the answer; empty list: no echo
  std::vector<std::size_t> hidden_prompt_tokens = {};  // leading tokens that are not part of the text (bos)
  std::int64_t tokens_dropped = 0;                     // removed from a conversation to make room
  std::size_t answer_bytes = 0;                        // memory that answering may take

  std::string log_text = {};  // the prompt, for --log-prompts
};

// Both throw an ApiError with status 400 that names the field.
CompletionRequest parse_chat_completion(const Json& body, const ServedModel& model);
CompletionRequest parse_text_completion(const Json& body, const ServedModel& model);

// Memory that answering `request` with a prompt of this size may take: the request, and for each
// choice its sampler and its answer, until that is sent. Throws an ApiError if `so_far` and this
// exceed the limit, otherwise returns the sum.
std::size_t answer_bytes(std::size_t so_far, const Request& request, std::size_t prompt_tokens,
                         const ServedModel& model);

class ApiError;
// The error llama.cpp's server returns for a prompt that is too long: status 400.
ApiError context_exceeded(const std::string& message, std::int64_t prompt_tokens, std::int64_t context);

// Reads "messages" as in OpenAI's API. Roles are system, developer (same as system), user and
// assistant; a content is a string or an array of text parts. The last message must not be from the
// assistant. Throws an ApiError that names the field.
Conversation parse_messages(Fields& fields);

// Reads "messages" and "tools" for a chat template, in OpenAI's form: also messages with the role
// tool, and assistant messages with tool_calls. Contents become texts. Throws an ApiError that
// names the field.
struct ToolMessages {
  Json messages, tools;  // tools: null if there are none
};
ToolMessages parse_tool_messages(Fields& fields);

// Reads the sampling fields, with the names of OpenAI, llama.cpp and vLLM. Absent fields take their
// values from `model`.
SamplingOptions read_sampling(Fields& fields, const ServedModel& model);

// Reads what the answer must consist of: "response_format" (OpenAI), "json_schema" and "grammar"
// (llama.cpp), "guided_regex" and "guided_choice" (vLLM). nullptr if none is sent. Throws an
// ApiError that names the field, with the path in a schema.
std::shared_ptr<Constraint> read_constraint(Fields& fields, const ServedModel& model);

// Reads "stop": a string or an array of strings.
std::vector<std::string> read_stops(Fields& fields);

}  // namespace thimble
