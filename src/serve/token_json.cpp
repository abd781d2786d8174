#include "serve/token_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

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

// A character counts where it begins.
std::size_t characters_in(std::string_view bytes) {
  return static_cast<std::size_t>(
      std::ranges::count_if(bytes, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
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
    offsets.push(place.offset);
    std::string added;
    tokenizer.append_token(score.id, std::exchange(place.starts_text, false), added);
    place.offset += characters_in(added);
  }
  return Json::object()
      .set("tokens", tokens)
      .set("token_logprobs", logprobs)
      .set("top_logprobs", tops)
      .set("text_offset", offsets);
}

}  // namespace thimble
