// /v1/chat/completions and /v1/completions.

#include <fmt/format.h>

#include "base/utf8.h"
#include "serve/completion_answer.h"
#include "serve/completion_request.h"
#include "serve/fields.h"
#include "serve/service.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

namespace {

std::string sse(const Json& json) {
  return fmt::format("data: {}\n\n", json.dump());
}

void stream(Exchange& exchange, const CompletionRequest& completion, CompletionAnswer& answer, Job& job) {
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
  const auto keep_alive = [&] {
    begin();
    exchange.reply.write(":\n\n");
  };
  exchange.follow(job, on_event, keep_alive);
  exchange.service.metrics().count_answer(answer.totals());
  if (completion.include_usage) exchange.reply.write(sse(answer.usage_chunk()));
  exchange.reply.write("data: [DONE]\n\n");
  exchange.reply.end_stream();
}

void complete(Exchange& exchange, const CompletionRequest& completion) {
  Service& service = exchange.service;
  CompletionAnswer answer(completion, service.model());
  exchange.log.set("id", answer.id()).set("stream", completion.stream);
  if (service.options().log_prompts) exchange.log.set("prompt", completion.log_text);
  Job job = service.engine().submit(completion.prompts);
  if (completion.stream) {
    stream(exchange, completion, answer, job);
  } else {
    exchange.follow(job, [&](JobEvent event) { answer.add(std::move(event)); });
    service.metrics().count_answer(answer.totals());
    exchange.send_json(answer.complete_response());
  }
  exchange.log.set("prompt_tokens", answer.prompt_tokens())
      .set("completion_tokens", answer.generated_tokens())
      .set("first_token_seconds", answer.first_token_seconds())
      .set("finish_reason", answer.finish_reason());
}

void chat_completions(Exchange& exchange) {
  complete(exchange, parse_chat_completion(parse_body(exchange.request.body), exchange.service.model()));
}

void text_completions(Exchange& exchange) {
  complete(exchange, parse_text_completion(parse_body(exchange.request.body), exchange.service.model()));
}

// /tokenize, /detokenize and /apply-template are compatible with llama.cpp's server.

// The text of a token, or an array of bytes if it is not valid UTF-8.
Json piece_of(const Tokenizer& tokenizer, TokenId id) {
  const std::string bytes = bytes_of_token(tokenizer, id);
  if (is_utf8(bytes)) return bytes;
  Json values = Json::array();
  for (const char byte : bytes) values.push(static_cast<int>(static_cast<unsigned char>(byte)));
  return values;
}

void tokenize(Exchange& exchange) {
  const Json body = parse_body(exchange.request.body);
  Fields fields(body);
  fields.required("content");
  const std::string content = *fields.string("content");
  const bool add_special = fields.boolean("add_special").value_or(false);
  const bool parse_special = fields.boolean("parse_special").value_or(true);
  const bool with_pieces = fields.boolean("with_pieces").value_or(false);
  fields.finish();
  const Tokenizer& tokenizer = *exchange.service.model().tokenizer;
  Json tokens = Json::array();
  for (const TokenId id : tokenizer.encode(content, {.trusted = parse_special, .add_special = add_special})) {
    if (with_pieces)
      tokens.push(Json::object().set("id", id).set("piece", piece_of(tokenizer, id)));
    else
      tokens.push(id);
  }
  exchange.send_json(Json::object().set("tokens", tokens));
}

void detokenize(Exchange& exchange) {
  const Json body = parse_body(exchange.request.body);
  Fields fields(body);
  const Json& tokens = fields.required("tokens");
  if (!tokens.is_array())
    throw bad_field("tokens", fmt::format("tokens must be an array of ids, got {}", kind_of(tokens)));
  fields.finish();
  const Tokenizer& tokenizer = *exchange.service.model().tokenizer;
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

void apply_template(Exchange& exchange) {
  const ServedModel& model = exchange.service.model();
  if (!model.layout) throw ApiError(400, error_type_of(400), "this model was not trained to chat");
  const Json body = parse_body(exchange.request.body);
  Fields fields(body);
  const Conversation turns = parse_messages(fields);
  fields.finish();
  const std::vector<TokenId> ids = model.layout->prompt(turns);
  Json tokens = Json::array();
  for (const TokenId id : ids) tokens.push(id);
  exchange.send_json(Json::object()
                         .set("prompt", model.tokenizer->decode(ids, {.keep_special = true}))
                         .set("tokens", tokens));
}

constexpr Route kCompletionRoutes[] = {
    {"POST", "/v1/chat/completions", chat_completions},
    {"POST", "/chat/completions", chat_completions},
    {"POST", "/v1/completions", text_completions},
    {"POST", "/completions", text_completions},
    {"POST", "/tokenize", tokenize},
    {"POST", "/detokenize", detokenize},
    {"POST", "/apply-template", apply_template},
};

}  // namespace

std::span<const Route> completion_routes() {
  return kCompletionRoutes;
}

}  // namespace thimble
