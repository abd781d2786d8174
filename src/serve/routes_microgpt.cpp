// The two routes of microgpt's HTTP server, with its defaults, limits and error messages.
//
//   POST /microgpt/v1/generate  {num_samples 1, temperature 0.8, seed 42, max_tokens}
//                               -> {"samples": [...]}
//   POST /microgpt/v1/chat      {messages, temperature, seed, max_tokens}
//                               -> {"role", "content", "tokens_dropped"}
//
// Errors are {"error": TEXT}. Sample i uses seed + i. Leading and trailing blanks are stripped.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <limits>

#include "base/text.h"
#include "infer/chat_context.h"
#include "infer/generate.h"
#include "infer/sampler.h"
#include "serve/completion_answer.h"
#include "serve/fields.h"
#include "serve/service.h"

namespace thimble {

namespace {

constexpr std::int64_t kMaxSamples = 50;  // larger values are clamped, not rejected
constexpr double kTemperature = 0.8;
constexpr std::int64_t kSeed = 42;

ApiError bad_request(const std::string& message) {
  return {400, error_type_of(400), message};
}

Request read_request(Fields& fields) {
  Request request;
  const double temperature = fields.number("temperature").value_or(kTemperature);
  check_sampling_value("temperature", temperature);
  request.sampling.temperature = static_cast<float>(temperature);
  request.sampling.seed = static_cast<std::uint64_t>(fields.integer("seed").value_or(kSeed));
  request.max_tokens = fields.integer("max_tokens").value_or(std::numeric_limits<std::int64_t>::max());
  if (request.max_tokens < 1) throw bad_request("max_tokens must be >= 1 when specified");
  return request;
}

Conversation read_messages(Fields& fields) {
  const Json& messages = fields.required("messages");
  if (!messages.is_array())
    throw bad_request(fmt::format("messages must be an array, got {}", kind_of(messages)));
  if (messages.size() == 0) throw bad_request("messages must not be empty");
  Conversation turns;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    Fields message(messages.as_array()[i], fmt::format("messages[{}].", i));
    message.required("role");
    message.required("content");
    const std::string role = *message.string("role");
    const std::string content = *message.string("content");
    if (role != "user" && role != "assistant")
      throw bad_request(fmt::format("messages[{}]: unknown role \"{}\"", i, role.substr(0, 40)));
    if (trim(content).empty()) throw bad_request(fmt::format("messages[{}]: content must not be empty", i));
    message.finish();
    turns.push_back({role == "user" ? ChatRole::user : ChatRole::assistant, content});
  }
  return turns;
}

// An Accept header that excludes JSON is answered with 406.
void check_accepts_json(const HttpRequest& request) {
  const std::string* accept = request.header("accept");
  if (!accept) return;
  const auto allows = [&](std::string_view type) { return accept->find(type) != std::string::npos; };
  if (!allows("application/json") && !allows("*/*") && !allows("application/*"))
    throw ApiError(406, error_type_of(406), "Accept must allow application/json");
}

void microgpt_generate(Exchange& exchange) {
  check_accepts_json(exchange.request);
  const Json body = parse_body(exchange.request.body);
  Fields fields(body);
  Request request = read_request(fields);
  const std::int64_t samples = fields.integer("num_samples").value_or(1);
  if (samples < 1) throw bad_request("num_samples must be >= 1");
  fields.finish();
  request.samples = static_cast<int>(std::min(samples, kMaxSamples));
  const Request start = text_request(*exchange.service.model().tokenizer, "");
  request.prompt = start.prompt;
  request.stop_ids = start.stop_ids;
  request.starts_text = true;
  exchange.reserve_answer(answer_bytes(0, request, request.prompt.size(), exchange.service.model()));

  std::vector<std::string> texts(static_cast<std::size_t>(request.samples));
  Usage usage;
  Job job = exchange.service.engine().submit({request});
  exchange.follow(job, [&](const JobEvent& event) {
    check_answered(event.event);
    texts[static_cast<std::size_t>(event.event.sample)] += event.event.text;
    if (!event.event.finish) return;
    usage.generated_tokens += event.event.usage.generated_tokens;
    usage.prompt_tokens = event.event.usage.prompt_tokens;
  });
  Json list = Json::array();
  for (const std::string& text : texts) list.push(std::string(trim(text)));
  exchange.service.metrics().count_answer(usage);
  exchange.send_json(Json::object().set("samples", list));
  exchange.log.set("completion_tokens", usage.generated_tokens);
}

ChatRequest read_chat(Exchange& exchange) {
  const Json body = parse_body(exchange.request.body);
  const ServedModel& model = exchange.service.model();
  if (!model.layout) throw bad_request("model was not trained with chat tokens");
  Fields fields(body);
  const Request options = read_request(fields);
  const Conversation turns = read_messages(fields);
  fields.finish();
  if (exchange.service.options().log_prompts) exchange.log.set("prompt", turns.back().content);
  return chat_request(*model.layout, turns, model.config.context, options);
}

void microgpt_chat(Exchange& exchange) {
  check_accepts_json(exchange.request);
  const ChatRequest fitted = read_chat(exchange);
  exchange.reserve_answer(
      answer_bytes(0, fitted.request, fitted.request.prompt.size(), exchange.service.model()));

  std::string text;
  Usage usage;
  Job job = exchange.service.engine().submit({fitted.request});
  exchange.follow(job, [&](const JobEvent& event) {
    check_answered(event.event);
    text += event.event.text;
    if (event.event.finish) usage = event.event.usage;
  });
  exchange.service.metrics().count_answer(usage);
  exchange.send_json(Json::object()
                         .set("role", "assistant")
                         .set("content", std::string(trim(text)))
                         .set("tokens_dropped", fitted.tokens_dropped));
  exchange.log.set("prompt_tokens", usage.prompt_tokens).set("completion_tokens", usage.generated_tokens);
}

constexpr Route kMicrogptRoutes[] = {
    {"POST", "/microgpt/v1/generate", microgpt_generate},
    {"POST", "/microgpt/v1/chat", microgpt_chat},
};

}  // namespace

std::span<const Route> microgpt_routes() {
  return kMicrogptRoutes;
}

}  // namespace thimble
