// /v1/chat/completions and /v1/completions.

#include <fmt/format.h>

#include "base/clock.h"
#include "serve/completion_answer.h"
#include "serve/completion_request.h"
#include "serve/fields.h"
#include "serve/service.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace thimble {

namespace {

constexpr double kLookAround = 0.02;  // seconds between two looks at whether the client is still there
constexpr double kSilence = 10;       // seconds after which a stream says that it is alive

std::string sse(const Json& json) {
  return fmt::format("data: {}\n\n", json.dump());
}

}  // namespace

void Service::chat_completions(Exchange& exchange) {
  complete(exchange, parse_chat_completion(parse_body(exchange.request.body), model_));
}

void Service::text_completions(Exchange& exchange) {
  complete(exchange, parse_text_completion(parse_body(exchange.request.body), model_));
}

Job Service::submit(std::vector<Request> requests) {
  return engine_.submit(std::move(requests));
}

void Service::complete(Exchange& exchange, const CompletionRequest& asked) {
  CompletionAnswer answer(asked, model_);
  exchange.log.set("id", answer.id()).set("stream", asked.stream);
  if (options_.log_prompts) exchange.log.set("prompt", asked.log_text);
  Job job = submit(asked.prompts);
  if (asked.stream) {
    stream(exchange, asked, answer, job);
  } else {
    follow(exchange, job, [&](JobEvent event) { answer.add(std::move(event)); });
    metrics_.count_answer(answer.totals());
    exchange.send_json(answer.whole());
  }
  exchange.log.set("prompt_tokens", answer.prompt_tokens())
      .set("completion_tokens", answer.generated_tokens())
      .set("first_token_seconds", answer.first_token_seconds())
      .set("finish_reason", answer.finish_reason());
}

void Service::stream(Exchange& exchange, const CompletionRequest& asked, CompletionAnswer& answer, Job& job) {
  const auto begin = [&] {
    if (exchange.reply.started()) return;
    exchange.reply.add_header("Cache-Control", "no-cache");
    exchange.reply.begin_stream(200, "text/event-stream");
  };
  const auto on_event = [&](JobEvent event) {
    std::string text;
    for (const Json& chunk : answer.chunks(std::move(event))) text += sse(chunk);
    begin();
    exchange.reply.write(text);
  };
  const auto alive = [&] {
    begin();
    exchange.reply.write(":\n\n");
  };
  follow(exchange, job, on_event, alive);
  metrics_.count_answer(answer.totals());
  if (asked.include_usage) exchange.reply.write(sse(answer.usage_chunk()));
  exchange.reply.write("data: [DONE]\n\n");
  exchange.reply.end_stream();
}

void Service::follow(Exchange& exchange, Job& job, const std::function<void(JobEvent)>& on_event,
                     const std::function<void()>& idle) {
  double heard = seconds_now();
  while (!job.done()) {
    std::vector<JobEvent> events = job.wait(kLookAround);
    const double now = seconds_now();
    if (exchange.reply.gone()) throw ApiError(499, error_type_of(499), "the client closed the connection");
    if (now - exchange.started > options_.request_seconds)
      throw ApiError(504, error_type_of(504),
                     fmt::format("the answer took more than {} seconds", options_.request_seconds));
    for (JobEvent& event : events) on_event(std::move(event));
    if (!events.empty()) heard = now;
    if (now - heard > kSilence && idle) {
      idle();
      heard = now;
    }
  }
}

// /tokenize, /detokenize, /apply-template: as llama.cpp has them.

namespace {

// A piece that is no text by itself is an array of bytes.
Json piece_of(const Tokenizer& tokenizer, TokenId id) {
  const std::string bytes = bytes_of_token(tokenizer, id);
  if (is_utf8(bytes)) return bytes;
  Json values = Json::array();
  for (const char byte : bytes) values.push(static_cast<int>(static_cast<unsigned char>(byte)));
  return values;
}

}  // namespace

void Service::tokenize(Exchange& exchange) {
  const Json body = parse_body(exchange.request.body);
  Fields fields(body);
  fields.required("content");
  const std::string content = *fields.string("content");
  const bool add_special = fields.boolean("add_special").value_or(false);
  const bool parse_special = fields.boolean("parse_special").value_or(true);
  const bool with_pieces = fields.boolean("with_pieces").value_or(false);
  fields.finish();
  const Tokenizer& tokenizer = *model_.tokenizer;
  Json tokens = Json::array();
  for (const TokenId id : tokenizer.encode(content, {.trusted = parse_special, .add_special = add_special})) {
    if (with_pieces)
      tokens.push(Json::object().set("id", id).set("piece", piece_of(tokenizer, id)));
    else
      tokens.push(id);
  }
  exchange.send_json(Json::object().set("tokens", tokens));
}

void Service::detokenize(Exchange& exchange) {
  const Json body = parse_body(exchange.request.body);
  Fields fields(body);
  const Json& tokens = fields.required("tokens");
  if (!tokens.is_array())
    throw bad_field("tokens", fmt::format("tokens must be an array of ids, got {}", kind_of(tokens)));
  fields.finish();
  const Tokenizer& tokenizer = *model_.tokenizer;
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const Json& token = tokens.as_array()[i];
    const bool fits = token.is_int() && token.as_int() >= 0 && token.as_int() < tokenizer.vocab_size();
    if (!fits)
      throw bad_field("tokens",
                      fmt::format("tokens[{}] must be an id below {}, got {}", i, tokenizer.vocab_size(),
                                  token.is_number() ? token.dump() : std::string(kind_of(token))));
    ids.push_back(static_cast<TokenId>(token.as_int()));
  }
  exchange.send_json(Json::object().set("content", tokenizer.decode(ids, {.keep_special = true})));
}

void Service::apply_template(Exchange& exchange) {
  if (!model_.layout) throw ApiError(400, error_type_of(400), "this model was not trained to chat");
  const Json body = parse_body(exchange.request.body);
  Fields fields(body);
  const Conversation turns = parse_messages(fields);
  fields.finish();
  const std::vector<TokenId> ids = model_.layout->prompt(turns);
  Json tokens = Json::array();
  for (const TokenId id : ids) tokens.push(id);
  exchange.send_json(Json::object()
                         .set("prompt", model_.tokenizer->decode(ids, {.keep_special = true}))
                         .set("tokens", tokens));
}

}  // namespace thimble
