// /tokenize, /detokenize, /apply-template: as llama.cpp has them.
#include <fmt/format.h>

#include "serve/api_error.h"
#include "serve/exchange.h"
#include "serve/fields.h"
#include "serve/messages.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace thimble {

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
