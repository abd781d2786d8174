#include "serve/completion_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <random>

#include "base/error.h"
#include "base/text.h"
#include "infer/chat_context.h"
#include "infer/request.h"
#include "serve/fields.h"

namespace thimble {

namespace {

constexpr std::array<std::string_view, 12> kUnsupported = {
    "tools",  "tool_choice",        "functions", "function_call", "audio",         "modalities",
    "suffix", "web_search_options", "n_probs",   "best_of",       "chat_template", "chat_template_kwargs"};

void accept_object(Fields& fields, std::string_view name) {
  const Json* value = fields.find(name);
  if (value && !value->is_object())
    throw bad_field(std::string(name), fmt::format("{} must be an object, got {}", name, kind_of(*value)));
}

// Fields of OpenAI and llama.cpp that do not change what an answer of this server is: they concern
// accounts, storage, caches, reasoning and speed.
void accept_without_effect(Fields& fields) {
  fields.string("model");
  fields.string("user");
  fields.string("safety_identifier");
  fields.string("service_tier");
  fields.string("prompt_cache_key");
  fields.string("prompt_cache_retention");
  fields.string("reasoning_effort");
  fields.string("verbosity");
  fields.boolean("store");
  fields.boolean("parallel_tool_calls");
  fields.boolean("cache_prompt");
  accept_object(fields, "metadata");
  accept_object(fields, "prediction");
}

// Fields that are not supported but may be sent with a value that asks for nothing.
void accept_defaults(Fields& fields) {
  const auto harmless = [&](std::string_view name, const Json& value, const Json& other = {}) {
    if (fields.has(name) && *fields.find(name) != value && *fields.find(name) != other)
      throw bad_field(std::string(name), fmt::format("{} is not supported by this server", name));
  };
  harmless("modalities", Json::array({Json("text")}));
  harmless("tools", Json::array());
  harmless("tool_choice", "none", "auto");
  harmless("functions", Json::array());
  harmless("function_call", "none", "auto");
  harmless("suffix", "");
}

void read_stream_options(Fields& fields, CompletionRequest& completion) {
  completion.stream = fields.boolean("stream").value_or(false);
  const Json* options = fields.find("stream_options");
  if (!options) return;
  if (!completion.stream) throw bad_field("stream_options", "stream_options requires stream: true");
  Fields inner(*options, "stream_options.");
  completion.include_usage = inner.boolean("include_usage").value_or(false);
  inner.finish();
}

std::optional<std::int64_t> read_max_tokens(Fields& fields, std::int64_t least) {
  const auto older = fields.integer("max_tokens"), newer = fields.integer("max_completion_tokens");
  if (older && newer && older != newer)
    throw bad_field("max_tokens",
                    fmt::format("max_tokens and max_completion_tokens differ: {} and {}", *older, *newer));
  const auto value = newer ? newer : older;
  const std::string_view name = newer ? "max_completion_tokens" : "max_tokens";
  if (value && *value < least)
    throw bad_field(std::string(name), fmt::format("{} must be >= {}, got {}", name, least, *value));
  return value;
}

int read_samples(Fields& fields) {
  const std::int64_t samples = fields.integer("n").value_or(1);
  if (samples < 1 || samples > kMaxChoices)
    throw bad_field("n", fmt::format("n must be between 1 and {}, got {}", kMaxChoices, samples));
  return static_cast<int>(samples);
}

// Reads the fields shared by chat and text completions.
Request read_request(Fields& fields, const ServedModel& model, CompletionRequest& completion) {
  accept_without_effect(fields);
  accept_defaults(fields);
  read_stream_options(fields, completion);
  Request request;
  request.sampling = read_sampling(fields, model);
  request.stop_strings = read_stops(fields);
  request.samples = completion.samples = read_samples(fields);
  request.min_tokens = fields.integer("min_tokens").value_or(0);
  request.constraint = read_constraint(fields, model);
  request.raw_logprobs = fields.boolean("raw_logprobs").value_or(false);
  return request;
}

void check_min_tokens(const Request& request) {
  if (request.min_tokens > request.max_tokens)
    throw bad_field("min_tokens", fmt::format("min_tokens must be at most max_tokens ({}), got {}",
                                              request.max_tokens, request.min_tokens));
}

void check_prompt_size(std::size_t tokens, const ServedModel& model) {
  const auto size = static_cast<std::int64_t>(tokens);
  if (size > model.config.context)
    throw context_exceeded(
        fmt::format("the prompt has {} tokens, but the model's context is {}", size, model.config.context),
        size, model.config.context);
}

void check_all(const CompletionRequest& completion, const Fields& fields, const ServedModel& model) {
  for (const Request& request : completion.prompts) {
    check_prompt_size(request.prompt.size(), model);
    try {
      check_request(request, model.config, model.tokenizer);
    } catch (const Error& error) {
      throw fields.to_api_error(error);
    }
  }
}

void read_chat_logprobs(Fields& fields, Request& request, CompletionRequest& completion) {
  completion.logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs");
  if (top && !completion.logprobs) throw bad_field("top_logprobs", "top_logprobs requires logprobs: true");
  if (top && (*top < 0 || *top > kMaxTopLogprobs))
    throw bad_field("top_logprobs",
                    fmt::format("top_logprobs must be between 0 and {}, got {}", kMaxTopLogprobs, *top));
  if (completion.logprobs) request.logprobs = static_cast<int>(top.value_or(0));
}

void read_text_logprobs(Fields& fields, Request& request, CompletionRequest& completion) {
  const auto top = fields.integer("logprobs");
  if (!top) return;
  if (*top < 0 || *top > kMaxTopLogprobs)
    throw bad_field("logprobs",
                    fmt::format("logprobs must be between 0 and {}, got {}", kMaxTopLogprobs, *top));
  completion.logprobs = true;
  request.logprobs = static_cast<int>(*top);
}

bool read_truncation(Fields& fields) {
  const std::string truncation = fields.string("truncation").value_or("auto");
  if (truncation != "auto" && truncation != "disabled")
    throw bad_field("truncation", "truncation must be 'auto' or 'disabled'");
  return truncation == "auto";
}

// ignore_eos: the answer is generated up to max_tokens.
void never_stop(Request& request) {
  std::vector<TokenId>& suppressed = request.sampling.suppressed;
  suppressed.insert(suppressed.end(), request.stop_ids.begin(), request.stop_ids.end());
  request.stop_ids.clear();
}

struct Prompt {
  std::vector<TokenId> ids;
  std::optional<std::string> text;       // absent if the client sent ids
  std::size_t hidden_prompt_tokens = 0;  // leading tokens without text (bos)
  bool from_start = false;               // the first generated token begins the text
};

Prompt text_prompt(const std::string& text, const Tokenizer& tokenizer) {
  const Request request = text_request(tokenizer, text);
  const bool bos = tokenizer.special().bos && !request.prompt.empty() &&
                   request.prompt.front() == *tokenizer.special().bos;
  return {request.prompt, text, bos ? std::size_t{1} : 0, request.starts_text};
}

Prompt token_prompt(const Json::Array& tokens, std::string_view name, const Tokenizer& tokenizer) {
  Prompt prompt;
  for (const Json& token : tokens) {
    const bool fits = token.is_int() && token.as_int() >= 0 && token.as_int() < tokenizer.vocab_size();
    if (!fits)
      throw bad_field(std::string(name),
                      fmt::format("{} must contain token ids below {}, got {}", name, tokenizer.vocab_size(),
                                  token.is_number() ? token.dump() : std::string(kind_of(token))));
    prompt.ids.push_back(static_cast<TokenId>(token.as_int()));
  }
  return prompt;
}

// Reads "prompt": a string, an array of token ids, or an array of either.
std::vector<Prompt> read_prompts(Fields& fields, const Tokenizer& tokenizer) {
  const Json* given = fields.find("prompt");
  if (!given) return {text_prompt("", tokenizer)};
  if (given->is_string()) return {text_prompt(given->as_string(), tokenizer)};
  if (!given->is_array())
    throw bad_field(
        "prompt", fmt::format("prompt must be a string, an array of token ids, or an array of either, got {}",
                              kind_of(*given)));
  const Json::Array& items = given->as_array();
  if (items.empty()) throw bad_field("prompt", "prompt must not be empty");
  if (items.front().is_number()) return {token_prompt(items, "prompt", tokenizer)};
  if (items.size() > kMaxChoices)
    throw bad_field("prompt",
                    fmt::format("prompt must contain at most {} prompts, got {}", kMaxChoices, items.size()));
  std::vector<Prompt> prompts;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string name = fmt::format("prompt[{}]", i);
    if (items[i].is_string())
      prompts.push_back(text_prompt(items[i].as_string(), tokenizer));
    else if (items[i].is_array() && items[i].size() > 0)
      prompts.push_back(token_prompt(items[i].as_array(), name, tokenizer));
    else
      throw bad_field(name, fmt::format("{} must be a string or an array of token ids, got {}", name,
                                        items[i].is_array() ? "an empty array" : kind_of(items[i])));
  }
  return prompts;
}

}  // namespace

std::size_t answer_bytes(std::size_t so_far, const Request& request, std::size_t prompt_tokens,
                         const ServedModel& model) {
  // A Sequence with its events. Per token: the ids of two histories that double their capacity, a
  // count for penalties, and text that doubles its capacity.
  constexpr std::size_t kChoice = 8 << 10, kToken = 16 + 48;
  constexpr std::size_t kConstraint = 8 << 20;
  const SamplingOptions& sampling = request.sampling;
  std::size_t options = sampling.logit_bias.size() * sizeof(sampling.logit_bias[0]) +
                        sampling.suppressed.size() * sizeof(TokenId);
  for (const std::string& stop : request.stop_strings) options += stop.size() + 2 * sizeof stop;
  const std::size_t score = request.logprobs == kNoLogprobs ? 0
                                                            : 2 * sizeof(TokenScore) + 16 +
                                                                  static_cast<std::size_t>(request.logprobs) *
                                                                      sizeof(std::pair<TokenId, float>);
  const std::int64_t room = model.config.context + 1 - static_cast<std::int64_t>(prompt_tokens);
  const auto tokens = static_cast<std::size_t>(std::clamp<std::int64_t>(request.max_tokens, 0, room));
  const auto samples = static_cast<std::size_t>(request.samples);
  const std::size_t prompt = prompt_tokens * (16 + model.longest_token + (request.score_prompt ? score : 0));
  const std::size_t choice =
      kChoice + options + 8 * prompt_tokens + tokens * (kToken + 2 * model.longest_token + score);
  const std::size_t bytes = so_far + prompt + 2 * options + samples * choice +
                            (request.constraint && so_far == 0 ? kConstraint : 0);
  if (bytes > model.max_answer_bytes)
    throw bad_field("max_tokens",
                    fmt::format("max_tokens: the answer may take {} bytes, but the limit is {}; lower "
                                "max_tokens, n, the number of prompts or of log-probabilities",
                                bytes, model.max_answer_bytes));
  return bytes;
}

ApiError context_exceeded(const std::string& message, std::int64_t prompt_tokens, std::int64_t context) {
  return ApiError(400, "exceed_context_size_error", message)
      .with("n_prompt_tokens", prompt_tokens)
      .with("n_ctx", context);
}

CompletionRequest parse_chat_completion(const Json& body, const ServedModel& model) {
  Fields fields(body);
  CompletionRequest completion{.dialect = Dialect::chat};
  const Conversation turns = parse_messages(fields);
  Request request = read_request(fields, model, completion);
  request.max_tokens = read_max_tokens(fields, 1).value_or(std::numeric_limits<std::int64_t>::max());
  check_min_tokens(request);
  read_chat_logprobs(fields, request, completion);
  const bool may_drop = read_truncation(fields);
  const bool endless = fields.boolean("ignore_eos").value_or(false);
  fields.finish(kUnsupported);
  if (!model.layout)
    throw ApiError(400, "invalid_request_error",
                   "this model was not trained to chat; use /v1/completions to continue a text");
  const auto size = static_cast<std::int64_t>(model.layout->prompt(turns).size());
  ChatRequest fitted;
  try {
    fitted = chat_request(*model.layout, turns, model.config.context, std::move(request));
  } catch (const Error& error) {
    throw context_exceeded(error.what(), size, model.config.context);
  }
  if (fitted.tokens_dropped > 0 && !may_drop)
    throw context_exceeded(fmt::format("the conversation has {} tokens and leaves too little of the model's "
                                       "context of {} for an answer",
                                       size, model.config.context),
                           size, model.config.context);
  completion.tokens_dropped = fitted.tokens_dropped;
  if (endless) never_stop(fitted.request);
  completion.answer_bytes = answer_bytes(0, fitted.request, fitted.request.prompt.size(), model);
  completion.prompts.push_back(std::move(fitted.request));
  completion.hidden_prompt_tokens = {0};
  completion.log_text = turns.back().content;
  check_all(completion, fields, model);
  return completion;
}

CompletionRequest parse_text_completion(const Json& body, const ServedModel& model) {
  Fields fields(body);
  CompletionRequest completion{.dialect = Dialect::text};
  std::vector<Prompt> prompts = read_prompts(fields, *model.tokenizer);
  Request request = read_request(fields, model, completion);
  request.max_tokens = read_max_tokens(fields, 0).value_or(kDefaultTextTokens);
  check_min_tokens(request);
  read_text_logprobs(fields, request, completion);
  const bool echo = fields.boolean("echo").value_or(false);
  if (const auto best_of = fields.integer("best_of"); best_of && *best_of != completion.samples)
    throw bad_field("best_of", "best_of must equal n: this server does not support other values");
  // lm-evaluation-harness scores the prompt, and drops the last score as that of a generated token.
  const bool scores_prompt = echo && completion.logprobs && request.max_tokens == 1;
  const bool endless = fields.boolean("ignore_eos").value_or(false) || scores_prompt;
  fields.finish(kUnsupported);
  if (prompts.size() * static_cast<std::size_t>(completion.samples) > kMaxChoices)
    throw bad_field("n", fmt::format("the number of prompts times n must be at most {}, got {}", kMaxChoices,
                                     prompts.size() * static_cast<std::size_t>(completion.samples)));
  request.score_prompt = echo && completion.logprobs;
  for (const Prompt& prompt : prompts) {
    check_prompt_size(prompt.ids.size(), model);
    completion.answer_bytes = answer_bytes(completion.answer_bytes, request, prompt.ids.size(), model);
  }
  for (Prompt& prompt : prompts) {
    const std::string text =
        prompt.text ? *prompt.text : model.tokenizer->decode(prompt.ids, {.keep_special = true});
    Request& one = completion.prompts.emplace_back(request);
    one.prompt = std::move(prompt.ids);
    one.starts_text = prompt.from_start;
    one.stop_ids = text_request(*model.tokenizer, "").stop_ids;
    if (endless) never_stop(one);
    if (echo) completion.echoed.push_back(text);
    completion.hidden_prompt_tokens.push_back(prompt.hidden_prompt_tokens);
    completion.log_text += text;
  }
  check_all(completion, fields, model);
  return completion;
}

namespace {

constexpr std::size_t kMaxMessages = 10000;
constexpr std::size_t kMaxRoleShown = 40;

ChatRole parse_role(Fields& message) {
  const std::string name = message.full_name("role");
  const auto role = message.string("role");
  if (!role) throw bad_field(name, fmt::format("{} is required", name));
  if (*role == "system" || *role == "developer") return ChatRole::system;
  if (*role == "user") return ChatRole::user;
  if (*role == "assistant") return ChatRole::assistant;
  throw bad_field(name, fmt::format("{} must be system, user or assistant, got '{}'", name,
                                    role->substr(0, kMaxRoleShown)));
}

std::string parse_part(const Json& json, const std::string& name) {
  Fields part(json, name + ".");
  const auto type = part.string("type");
  if (type != "text")
    throw bad_field(name + ".type",
                    fmt::format("{}.type must be 'text'; other types are not supported", name));
  const auto text = part.string("text");
  if (!text) throw bad_field(name + ".text", fmt::format("{}.text is required", name));
  part.finish();
  return *text;
}

std::string parse_content(Fields& message) {
  const std::string name = message.full_name("content");
  const Json& content = message.required("content");
  if (content.is_string()) return content.as_string();
  if (!content.is_array())
    throw bad_field(
        name, fmt::format("{} must be a string or an array of text parts, got {}", name, kind_of(content)));
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i)
    text += parse_part(content.as_array()[i], fmt::format("{}[{}]", name, i));
  return text;
}

}  // namespace

namespace {

const Json::Array& messages_in(Fields& fields) {
  const Json& messages = fields.required("messages");
  if (!messages.is_array())
    throw bad_field("messages", fmt::format("messages must be an array, got {}", kind_of(messages)));
  if (messages.size() == 0) throw bad_field("messages", "messages must not be empty");
  if (messages.size() > kMaxMessages)
    throw bad_field("messages", fmt::format("messages must contain at most {} messages, got {}", kMaxMessages,
                                            messages.size()));
  return messages.as_array();
}

[[noreturn]] void fail_for_tools(const std::string& name, std::string_view expected, const Json& found) {
  throw bad_field(name, fmt::format("{} must be {}, got {}", name, expected, kind_of(found)));
}

// A call as templates expect it: the arguments are an object. OpenAI's API has them as JSON text.
Json parse_call(const Json& json, const std::string& name) {
  Fields call(json, name + ".");
  const auto id = call.string("id");
  if (const auto type = call.string("type").value_or("function"); type != "function")
    throw bad_field(call.full_name("type"), fmt::format("{} must be 'function'", call.full_name("type")));
  Fields function(call.required("function"), call.full_name("function") + ".");
  function.required("name");
  const std::string called = *function.string("name");
  const Json* given = function.find("arguments");
  Json arguments = given ? *given : Json::object();
  if (arguments.is_string()) {
    const std::string where = function.full_name("arguments");
    try {
      arguments = parse_json(arguments.as_string(), where);
    } catch (const Error& error) {
      throw bad_field(where, fmt::format("{} must be JSON: {}", where, error.what()));
    }
  }
  if (!arguments.is_object()) fail_for_tools(function.full_name("arguments"), "a JSON object", arguments);
  function.finish();
  call.finish();
  Json out = Json::object();
  if (id) out.set("id", *id);
  return out.set("type", "function")
      .set("function", Json::object().set("name", called).set("arguments", std::move(arguments)));
}

Json parse_calls(Fields& message) {
  const std::string name = message.full_name("tool_calls");
  const Json* calls = message.find("tool_calls");
  if (!calls) return {};
  if (!calls->is_array()) fail_for_tools(name, "an array", *calls);
  Json out = Json::array();
  for (std::size_t i = 0; i < calls->size(); ++i)
    out.push(parse_call(calls->as_array()[i], fmt::format("{}[{}]", name, i)));
  return out;
}

Json parse_tools(Fields& fields) {
  const Json* tools = fields.find("tools");
  if (!tools) return {};
  if (!tools->is_array()) fail_for_tools("tools", "an array", *tools);
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const std::string name = fmt::format("tools[{}]", i);
    const Json& tool = tools->as_array()[i];
    if (!tool.is_object()) fail_for_tools(name, "an object", tool);
    const Json* function = tool.find("function");
    if (!function || !function->is_object())
      throw bad_field(name + ".function", fmt::format("{}.function must be an object", name));
  }
  return tools->size() > 0 ? *tools : Json();
}

}  // namespace

ToolMessages parse_tool_messages(Fields& fields) {
  ToolMessages out{.messages = Json::array(), .tools = parse_tools(fields)};
  const Json::Array& messages = messages_in(fields);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    Fields message(messages[i], fmt::format("messages[{}].", i));
    const auto named = message.string("role");
    const bool result = named == "tool";
    const std::string role = result ? "tool" : std::string(name_of(parse_role(message)));
    const Json calls = parse_calls(message);
    const bool calling = calls.size() > 0;
    if (calling && role != "assistant")
      throw bad_field(message.full_name("tool_calls"), "only assistant messages have tool_calls");
    Json one = Json::object().set("role", role);
    one.set("content", calling && !message.has("content") ? "" : parse_content(message));
    if (calling) one.set("tool_calls", calls);
    for (const std::string_view key : {"tool_call_id", "name"})
      if (const auto text = result ? message.string(key) : std::nullopt) one.set(std::string(key), *text);
    message.finish();
    out.messages.push(std::move(one));
  }
  return out;
}

Conversation parse_messages(Fields& fields) {
  const Json::Array& messages = messages_in(fields);
  Conversation turns;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    Fields message(messages[i], fmt::format("messages[{}].", i));
    const ChatRole role = parse_role(message);
    std::string content = parse_content(message);
    if (content.empty() && role == ChatRole::user)
      throw bad_field(message.full_name("content"),
                      fmt::format("{} must not be empty", message.full_name("content")));
    constexpr std::string_view kUnsupported[] = {"name",    "tool_calls", "tool_call_id",     "function_call",
                                                 "refusal", "audio",      "reasoning_content"};
    message.finish(kUnsupported);
    turns.push_back({role, std::move(content)});
  }
  if (turns.back().role == ChatRole::assistant)
    throw bad_field("messages",
                    "messages must not end with an assistant message: the server generates the next one");
  return turns;
}

namespace {

// Checks the range before the conversion to float, so that messages quote what the client sent.
float checked_float(Fields& fields, std::string_view name, double value) {
  try {
    check_sampling_value(name, value);
  } catch (const Error& error) {
    throw fields.to_api_error(error);
  }
  return static_cast<float>(value);
}

float number(Fields& fields, std::string_view name, float absent) {
  const auto value = fields.number(name);
  return value ? checked_float(fields, name, *value) : absent;
}

std::uint64_t read_seed(Fields& fields, std::optional<std::uint64_t> absent) {
  const auto seed = fields.integer("seed");
  if (seed && *seed != -1) return static_cast<std::uint64_t>(*seed);
  if (!seed && absent) return *absent;
  std::random_device entropy;
  return std::uint64_t{entropy()} << 32 | entropy();
}

// {"50256": -100}
std::vector<std::pair<TokenId, float>> read_bias(Fields& fields) {
  std::vector<std::pair<TokenId, float>> biases;
  const Json* given = fields.find("logit_bias");
  if (!given) return biases;
  if (!given->is_object())
    throw bad_field("logit_bias",
                    fmt::format("logit_bias must be an object of token ids, got {}", kind_of(*given)));
  for (const auto& [key, value] : given->as_object()) {
    const auto id = parse_number<TokenId>(key);
    if (!id)
      throw bad_field("logit_bias",
                      fmt::format("logit_bias keys must be token ids, got '{}'", key.substr(0, 40)));
    if (!value.is_number())
      throw bad_field("logit_bias", fmt::format("logit_bias values must be numbers, got {}", kind_of(value)));
    biases.emplace_back(*id, checked_float(fields, "logit_bias", value.as_double()));
  }
  return biases;
}

// llama.cpp names it repeat_penalty, vLLM repetition_penalty.
float read_repetition(Fields& fields, float absent) {
  const auto ours = fields.number("repeat_penalty"), theirs = fields.number("repetition_penalty");
  if (ours && theirs && *ours != *theirs)
    throw bad_field("repeat_penalty",
                    fmt::format("repeat_penalty and repetition_penalty differ: {} and {}", *ours, *theirs));
  if (ours) fields.sent_as("repetition_penalty", "repeat_penalty");
  const auto given = ours ? ours : theirs;
  return given ? checked_float(fields, "repetition_penalty", *given) : absent;
}

}  // namespace

SamplingOptions read_sampling(Fields& fields, const ServedModel& model) {
  const SamplingOptions& defaults = model.defaults;
  SamplingOptions options = defaults;
  options.temperature = number(fields, "temperature", defaults.temperature);
  options.top_p = number(fields, "top_p", defaults.top_p);
  options.min_p = number(fields, "min_p", defaults.min_p);
  options.top_k = fields.integer("top_k").value_or(defaults.top_k);
  if (options.top_k == -1) options.top_k = 0;  // vLLM's value for "no limit"
  options.repetition_penalty = read_repetition(fields, defaults.repetition_penalty);
  options.repeat_last_n = fields.integer("repeat_last_n").value_or(defaults.repeat_last_n);
  options.frequency_penalty = number(fields, "frequency_penalty", defaults.frequency_penalty);
  options.presence_penalty = number(fields, "presence_penalty", defaults.presence_penalty);
  options.logit_bias = read_bias(fields);
  options.seed = read_seed(fields, model.seed);
  return options;
}

std::vector<std::string> read_stops(Fields& fields) {
  const Json* given = fields.find("stop");
  if (!given) return {};
  if (given->is_string()) return {given->as_string()};
  if (!given->is_array())
    throw bad_field("stop",
                    fmt::format("stop must be a string or an array of strings, got {}", kind_of(*given)));
  std::vector<std::string> stops;
  for (const Json& item : given->as_array()) {
    if (!item.is_string())
      throw bad_field("stop", fmt::format("stop must contain strings, got {}", kind_of(item)));
    stops.push_back(item.as_string());
  }
  return stops;
}

namespace {

struct NamedSource {
  std::string field;
  ConstraintSource source;
};

NamedSource schema_source(std::string field, const Json& schema) {
  return {std::move(field), {.kind = ConstraintKind::json_schema, .text = schema.dump()}};
}

// {"type": "json_schema", "json_schema": {"name": "person", "schema": {...}, "strict": true}}, or
// with "schema" beside "type", as llama.cpp reads it. `strict` makes no difference: a schema is
// always enforced.
std::optional<NamedSource> format_source(const Json& given) {
  if (!given.is_object())
    throw bad_field("response_format",
                    fmt::format("response_format must be an object, got {}", kind_of(given)));
  Fields format(given, "response_format.");
  const std::string type = format.string("type").value_or("");
  const Json* const schema = format.find("schema");
  const Json* const wrapped = format.find("json_schema");
  format.finish();
  if (type == "text" && !schema && !wrapped) return std::nullopt;
  if (type == "json_object" && !wrapped)
    return schema ? schema_source("response_format.schema", *schema) : NamedSource{"response_format", {}};
  if (type != "json_schema")
    throw bad_field("response_format.type",
                    "response_format.type must be 'text', 'json_object' or 'json_schema', with the fields of "
                    "that type");
  if (schema && !wrapped) return schema_source("response_format.schema", *schema);
  if (!wrapped || schema)
    throw bad_field("response_format.json_schema", "response_format.json_schema is required");
  if (!wrapped->is_object())
    throw bad_field("response_format.json_schema",
                    fmt::format("response_format.json_schema must be an object, got {}", kind_of(*wrapped)));
  Fields inner(*wrapped, "response_format.json_schema.");
  inner.string("name");
  inner.string("description");
  inner.boolean("strict");
  const Json& found = inner.required("schema");
  inner.finish();
  return schema_source("response_format.json_schema.schema", found);
}

std::vector<std::string> read_choices(const Json& given) {
  std::vector<std::string> choices;
  if (!given.is_array())
    throw bad_field("guided_choice",
                    fmt::format("guided_choice must be an array of strings, got {}", kind_of(given)));
  for (const Json& choice : given.as_array()) {
    if (!choice.is_string())
      throw bad_field("guided_choice",
                      fmt::format("guided_choice must contain strings, got {}", kind_of(choice)));
    choices.push_back(choice.as_string());
  }
  return choices;
}

}  // namespace

std::shared_ptr<Constraint> read_constraint(Fields& fields, const ServedModel& model) {
  std::vector<NamedSource> sources;
  if (const Json* format = fields.find("response_format"))
    if (auto source = format_source(*format)) sources.push_back(std::move(*source));
  if (const Json* schema = fields.find("json_schema"))
    sources.push_back(schema_source("json_schema", *schema));
  if (auto text = fields.string("grammar"); text && !text->empty())
    sources.push_back({"grammar", {.kind = ConstraintKind::gbnf, .text = std::move(*text)}});
  if (auto text = fields.string("guided_regex"))
    sources.push_back({"guided_regex", {.kind = ConstraintKind::regex, .text = std::move(*text)}});
  if (const Json* choices = fields.find("guided_choice"))
    sources.push_back({"guided_choice", {.kind = ConstraintKind::choice, .choices = read_choices(*choices)}});
  if (sources.empty()) return nullptr;
  if (sources.size() > 1)
    throw bad_field(sources[1].field, fmt::format("{} and {} were sent; a request may have one of them",
                                                  sources[0].field, sources[1].field));
  try {
    if (model.constraints) return model.constraints->compile(sources[0].source);
    return ConstraintCompiler(*model.tokenizer).compile(sources[0].source);
  } catch (const Error& error) {
    throw bad_field(sources[0].field, fmt::format("{}: {}", sources[0].field, error.what()));
  }
}

}  // namespace thimble
