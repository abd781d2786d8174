// /v1/chat/completions and /v1/completions.

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/utf8.h"
#include "serve/completion_answer.h"
#include "serve/completion_request.h"
#include "serve/fields.h"
#include "serve/service.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

namespace {

constexpr const char* kJson = "application/json";

void stream(Exchange& exchange, CompletionAnswer& answer, Job& job, bool include_usage) {
  exchange.reply.add_header("Cache-Control", "no-cache");
  ReplyWriter out(exchange.reply, "text/event-stream");
  const auto on_event = [&](JobEvent event) {
    answer.stream(std::move(event), out);
    out.flush();
  };
  const auto keep_alive = [&] {
    out.add(":\n\n");
    out.flush();
  };
  exchange.follow(job, on_event, keep_alive);
  exchange.service.metrics().count_answer(answer.totals());
  if (include_usage) answer.write_usage_chunk(out);
  out.add("data: [DONE]\n\n");
  out.end();
}

void complete(Exchange& exchange, const CompletionRequest& completion) {
  Service& service = exchange.service;
  exchange.reserve_answer(completion.answer_bytes);
  CompletionAnswer answer(completion, service.model());
  exchange.log.set("id", answer.id()).set("stream", completion.stream);
  if (service.options().log_prompts) exchange.log.set("prompt", completion.log_text);
  Job job = service.engine().submit(completion.prompts);
  if (completion.stream) {
    stream(exchange, answer, job, completion.include_usage);
  } else {
    exchange.follow(job, [&](JobEvent event) { answer.add(std::move(event)); });
    service.metrics().count_answer(answer.totals());
    ReplyWriter out(exchange.reply, kJson);
    answer.write_response(out);
    out.end();
  }
  exchange.log.set("prompt_tokens", answer.prompt_tokens())
      .set("completion_tokens", answer.generated_tokens())
      .set("first_token_seconds", answer.first_token_seconds())
      .set("finish_reason", answer.finish_reason());
}

// The JSON of the body is freed before the answer is generated.
void chat_completions(Exchange& exchange) {
  const CompletionRequest completion =
      parse_chat_completion(parse_body(exchange.request.body), exchange.service.model());
  complete(exchange, completion);
}

void text_completions(Exchange& exchange) {
  const CompletionRequest completion =
      parse_text_completion(parse_body(exchange.request.body), exchange.service.model());
  complete(exchange, completion);
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

template <class Text>
void write_ids(ReplyWriter& out, std::span<const TokenId> ids, Text text_of) {
  out.add("[");
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out.add(",");
    out.add(text_of(ids[i]));
  }
  out.add("]");
}

// The JSON of a body is freed before the answer is sent, which may take a slow client minutes.
std::vector<TokenId> read_text_to_tokenize(Exchange& exchange, bool& with_pieces) {
  const Json body = parse_body(exchange.request.body);
  Fields fields(body);
  fields.required("content");
  const std::string content = *fields.string("content");
  const bool add_special = fields.boolean("add_special").value_or(false);
  const bool parse_special = fields.boolean("parse_special").value_or(true);
  with_pieces = fields.boolean("with_pieces").value_or(false);
  fields.finish();
  return exchange.service.model().tokenizer->encode(content,
                                                    {.trusted = parse_special, .add_special = add_special});
}

void tokenize(Exchange& exchange) {
  bool with_pieces = false;
  const std::vector<TokenId> ids = read_text_to_tokenize(exchange, with_pieces);
  exchange.finish_reading(ids.capacity() * sizeof(TokenId));
  const Tokenizer& tokenizer = *exchange.service.model().tokenizer;
  ReplyWriter out(exchange.reply, kJson);
  out.add("{\"tokens\":");
  write_ids(out, ids, [&](TokenId id) {
    return with_pieces ? Json::object().set("id", id).set("piece", piece_of(tokenizer, id)).dump()
                       : std::to_string(id);
  });
  out.add("}\n");
  out.end();
}

// Like Tokenizer::decode with special tokens, piece by piece: an id of two bytes may stand for a
// token of a hundred.
void write_text(ReplyWriter& out, const Tokenizer& tokenizer, std::span<const TokenId> ids) {
  constexpr std::size_t kPieceBytes = 4096;
  std::string waiting;
  bool first = true;
  const auto write = [&](bool all) {
    std::string quoted;
    append_json_string(quoted, take_text(waiting, all));
    out.add(std::string_view(quoted).substr(1, quoted.size() - 2));
  };
  out.add("\"");
  for (const TokenId id : ids) {
    const bool control = tokenizer.token_type(id) == TokenType::control;
    if (control)
      waiting += tokenizer.token_text(id);
    else
      tokenizer.append_token(id, first, waiting);
    first = first && control;
    if (waiting.size() >= kPieceBytes) write(false);
  }
  write(true);
  out.add("\"");
}

std::vector<TokenId> read_tokens(Exchange& exchange) {
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
  return ids;
}

// Answers with the text of the ids under `key`, and with the ids themselves if `with_ids`.
void answer_text(Exchange& exchange, std::string_view key, const std::vector<TokenId>& ids, bool with_ids) {
  exchange.finish_reading(ids.capacity() * sizeof(TokenId));
  ReplyWriter out(exchange.reply, kJson);
  out.add(fmt::format("{{\"{}\":", key));
  write_text(out, *exchange.service.model().tokenizer, ids);
  if (with_ids) {
    out.add(",\"tokens\":");
    write_ids(out, ids, [](TokenId id) { return std::to_string(id); });
  }
  out.add("}\n");
  out.end();
}

void detokenize(Exchange& exchange) {
  answer_text(exchange, "content", read_tokens(exchange), false);
}

// Whether there are tools, or messages about their use.
bool asks_for_tools(const Json& body) {
  if (const Json* tools = body.find("tools"); tools && !tools->is_null() && tools->dump() != "[]")
    return true;
  const Json* messages = body.find("messages");
  return messages && messages->is_array() &&
         std::ranges::any_of(messages->as_array(), [](const Json& message) {
           const Json *role = message.find("role"), *calls = message.find("tool_calls");
           return (role && *role == Json("tool")) || (calls && !calls->is_null());
         });
}

std::vector<TokenId> read_conversation(Exchange& exchange) {
  const ServedModel& model = exchange.service.model();
  if (!model.layout) throw ApiError(400, error_type_of(400), "this model was not trained to chat");
  const Json body = parse_body(exchange.request.body);
  Fields fields(body);
  const bool about_tools = asks_for_tools(body);
  if (!about_tools) {
    const Conversation turns = parse_messages(fields);
    fields.find("tools");  // null or empty
    fields.finish();
    return model.layout->prompt(turns);
  }
  const ToolMessages given = parse_tool_messages(fields);
  fields.finish();
  if (!model.layout->takes_tools())
    throw ApiError(400, error_type_of(400), "the model's chat template takes no tools").about("tools");
  return model.layout->prompt_with_tools(given.messages, given.tools);
}

void apply_template(Exchange& exchange) {
  answer_text(exchange, "prompt", read_conversation(exchange), true);
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
