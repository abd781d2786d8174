#include "serve/token_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tokenizer/stream_decoder.h"
#include "tokenizer/unicode.h"

namespace thimble {

namespace {

Json byte_values(std::string_view bytes) {
  Json values = Json::array();
  for (const char byte : bytes) values.push(static_cast<int>(static_cast<unsigned char>(byte)));
  return values;
}

Json chat_token(const Tokenizer& tokenizer, TokenId id, float logprob) {
  const std::string bytes = bytes_of_token(tokenizer, id);
  return Json::object()
      .set("token", bytes)
      .set("logprob", static_cast<double>(logprob))
      .set("bytes", byte_values(bytes));
}

std::string text_token(const Tokenizer& tokenizer, TokenId id) {
  const std::string bytes = bytes_of_token(tokenizer, id);
  if (is_utf8(bytes)) return bytes;
  std::string spelled = "bytes:";
  for (const char byte : bytes) spelled += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return spelled;
}

std::size_t characters_in(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

// Moves the place behind the token; returns where it stood.
std::size_t pass(const Tokenizer& tokenizer, TokenId id, TextPlace& place) {
  const bool control = tokenizer.token_type(id) == TokenType::control;
  std::string added;
  if (place.prompt_tokens > 0 && control)
    added = tokenizer.token_text(id);
  else
    tokenizer.append_token(id, place.starts_text, added);
  const bool ends_prompt = place.prompt_tokens == 1;  // and with it what it began and did not finish
  place.prompt_tokens -= std::min<std::size_t>(place.prompt_tokens, 1);
  place.starts_text = place.starts_text && control;
  // Its first byte goes on with the character that waits, or shows that this one is broken: U+FFFD in the text.
  std::string begun = place.waiting + added.substr(0, 1);
  const std::size_t characters = characters_in(take_text(begun, true));
  const std::size_t offset = place.offset + std::max<std::size_t>(characters, 1) - 1;
  place.waiting += added;
  place.offset += characters_in(take_text(place.waiting, ends_prompt));
  return offset;
}

// The likeliest, and the one that was chosen.
Json text_top(const Tokenizer& tokenizer, const TokenScore& score) {
  if (std::isnan(score.logprob)) return {};
  Json top = Json::object();
  const auto add = [&](TokenId id, float logprob) {
    const std::string text = text_token(tokenizer, id);
    if (!top.find(text)) top.set(text, static_cast<double>(logprob));
  };
  for (const auto& [id, logprob] : score.top) add(id, logprob);
  add(score.id, score.logprob);
  return top;
}

}  // namespace

Json chat_logprobs(const Tokenizer& tokenizer, std::span<const TokenScore> scores) {
  Json content = Json::array();
  for (const TokenScore& score : scores) {
    Json top = Json::array();
    for (const auto& [id, logprob] : score.top) top.push(chat_token(tokenizer, id, logprob));
    content.push(chat_token(tokenizer, score.id, score.logprob).set("top_logprobs", top));
  }
  return Json::object().set("content", content).set("refusal", nullptr);
}

Json text_logprobs(const Tokenizer& tokenizer, std::span<const TokenScore> scores, TextPlace& place) {
  Json tokens = Json::array(), logprobs = Json::array(), tops = Json::array(), offsets = Json::array();
  for (const TokenScore& score : scores) {
    tokens.push(text_token(tokenizer, score.id));
    logprobs.push(static_cast<double>(score.logprob));
    tops.push(text_top(tokenizer, score));
    offsets.push(pass(tokenizer, score.id, place));
  }
  return Json::object()
      .set("tokens", tokens)
      .set("token_logprobs", logprobs)
      .set("top_logprobs", tops)
      .set("text_offset", offsets);
}

}  // namespace thimble
