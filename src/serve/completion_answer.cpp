#include "serve/completion_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/machine.h"
#include "base/utf8.h"
#include "http/access.h"
#include "serve/fields.h"
#include "tokenizer/tokenizer.h"

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

// Advances `position` past the token and returns the token's text offset.
std::size_t advance(const Tokenizer& tokenizer, TokenId id, TextPosition& position) {
  const bool control = tokenizer.token_type(id) == TokenType::control;
  std::string added;
  if (position.prompt_tokens > 0 && control)
    added = tokenizer.token_text(id);
  else
    tokenizer.append_token(id, position.starts_text, added);
  const bool ends_prompt = position.prompt_tokens == 1;  // then flush an incomplete character
  position.prompt_tokens -= std::min<std::size_t>(position.prompt_tokens, 1);
  position.starts_text = position.starts_text && control;
  // The token's first byte either continues the incomplete character, or shows that this character
  // is invalid, which becomes U+FFFD in the text.
  std::string begun = position.waiting + added.substr(0, 1);
  const std::size_t characters = characters_in(take_text(begun, true));
  const std::size_t offset = position.offset + std::max<std::size_t>(characters, 1) - 1;
  position.waiting += added;
  position.offset += characters_in(take_text(position.waiting, ends_prompt));
  return offset;
}

// The most likely tokens and the chosen one.
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

Json text_logprobs(const Tokenizer& tokenizer, std::span<const TokenScore> scores, TextPosition& position) {
  Json tokens = Json::array(), logprobs = Json::array(), tops = Json::array(), offsets = Json::array();
  for (const TokenScore& score : scores) {
    tokens.push(text_token(tokenizer, score.id));
    logprobs.push(static_cast<double>(score.logprob));
    tops.push(text_top(tokenizer, score));
    offsets.push(advance(tokenizer, score.id, position));
  }
  return Json::object()
      .set("tokens", tokens)
      .set("token_logprobs", logprobs)
      .set("top_logprobs", tops)
      .set("text_offset", offsets);
}

namespace {

double rate(std::int64_t tokens, double seconds) {
  return tokens > 0 && seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

}  // namespace

CompletionAnswer::CompletionAnswer(const CompletionRequest& request, const ServedModel& model)
    : request_(request),
      model_(model),
      id_(new_id(request.dialect == Dialect::chat ? "chatcmpl-" : "cmpl-")),
      created_(unix_time()),
      choices_(request.prompts.size() * static_cast<std::size_t>(request.samples)),
      prompt_scores_(request.prompts.size()) {
  for (std::size_t i = 0; i < choices_.size(); ++i) choices_[i].position = first_position(prompt_of(i));
}

TextPosition CompletionAnswer::first_position(std::size_t prompt) const {
  const Request& request = request_.prompts[prompt];
  if (request_.echoed.empty()) return {.starts_text = request.starts_text};
  return {.starts_text = true,
          .prompt_tokens = request.prompt.size() - request_.hidden_prompt_tokens[prompt]};
}

std::size_t CompletionAnswer::index_of(const JobEvent& event) const {
  return event.request * static_cast<std::size_t>(request_.samples) +
         static_cast<std::size_t>(event.event.sample);
}

CompletionAnswer::Choice& CompletionAnswer::record(const JobEvent& event) {
  if (event.event.error) throw ApiError(500, "server_error", event.event.error->what());
  Choice& choice = choices_[index_of(event)];
  if (!event.event.prompt.empty()) prompt_scores_[event.request] = event.event.prompt;
  if (event.event.finish) {
    choice.finish = event.event.finish;
    choice.usage = event.event.usage;
  }
  return choice;
}

void CompletionAnswer::add(JobEvent event) {
  Choice& choice = record(event);
  choice.text += event.event.text;
  std::ranges::move(event.event.tokens, std::back_inserter(choice.tokens));
}

std::vector<Json> CompletionAnswer::chunks(JobEvent event) {
  std::vector<Json> chunks;
  record(event);
  pending_.push_back(std::move(event));
  std::vector<JobEvent> pending = std::exchange(pending_, {});
  for (JobEvent& next : pending) {
    if (must_wait(next))
      pending_.push_back(std::move(next));
    else
      stream_event(next, chunks);
  }
  return chunks;
}

// With echo, a choice starts with the scored prompt. Only sample 0 scores it, so events that arrive
// before those scores must wait.
bool CompletionAnswer::must_wait(const JobEvent& event) const {
  const bool echoes_scores = !request_.echoed.empty() && request_.logprobs;
  return echoes_scores && !prompt_scores_[event.request];
}

void CompletionAnswer::stream_event(const JobEvent& event, std::vector<Json>& out) {
  const std::size_t index = index_of(event);
  Choice& choice = choices_[index];
  if (!choice.begun) begin_choice(index, out);
  if (!event.event.text.empty() || (request_.logprobs && !event.event.tokens.empty()))
    out.push_back(chunk(piece(index, event.event.text, logprobs(event.event.tokens, choice.position))));
  if (!event.event.finish) return;
  Json last = Json::object().set("index", index);
  if (request_.dialect == Dialect::chat)
    last.set("delta", Json::object());
  else
    last.set("text", "");
  last.set("logprobs", nullptr).set("finish_reason", name_of(*event.event.finish));
  Json ending = chunk(last);
  if (request_.dialect == Dialect::chat) ending.set("tokens_dropped", request_.tokens_dropped);
  if (finished() && !request_.include_usage) ending.set("timings", timings());
  out.push_back(std::move(ending));
}

void CompletionAnswer::begin_choice(std::size_t index, std::vector<Json>& out) {
  Choice& choice = choices_[index];
  choice.begun = true;
  if (request_.dialect == Dialect::chat) {
    out.push_back(chunk(Json::object()
                            .set("index", index)
                            .set("delta", Json::object().set("role", "assistant").set("content", ""))
                            .set("logprobs", nullptr)
                            .set("finish_reason", nullptr)));
  } else if (!request_.echoed.empty()) {
    const std::size_t prompt = prompt_of(index);
    out.push_back(
        chunk(piece(index, request_.echoed[prompt], logprobs(visible_prompt(prompt), choice.position))));
  }
}

std::vector<TokenScore> CompletionAnswer::visible_prompt(std::size_t prompt) const {
  if (!prompt_scores_[prompt]) return {};
  const std::vector<TokenScore>& all = *prompt_scores_[prompt];
  return {
      all.begin() + static_cast<std::ptrdiff_t>(std::min(request_.hidden_prompt_tokens[prompt], all.size())),
      all.end()};
}

Json CompletionAnswer::logprobs(std::span<const TokenScore> scores, TextPosition& position) const {
  if (!request_.logprobs) return {};
  return request_.dialect == Dialect::chat ? chat_logprobs(*model_.tokenizer, scores)
                                           : text_logprobs(*model_.tokenizer, scores, position);
}

Json CompletionAnswer::frame(std::string_view object) const {
  return Json::object()
      .set("id", id_)
      .set("object", object)
      .set("created", created_)
      .set("model", model_.name)
      .set("system_fingerprint", fmt::format("thimble-{}", version()));
}

Json CompletionAnswer::chunk(Json choice) const {
  Json json = frame(request_.dialect == Dialect::chat ? "chat.completion.chunk" : "text_completion");
  json.set("choices", Json::array({std::move(choice)}));
  // OpenAI's API sends "usage": null in every chunk if include_usage is set, and no field
  // otherwise.
  if (request_.include_usage) json.set("usage", nullptr);
  return json;
}

Json CompletionAnswer::piece(std::size_t index, std::string_view text, Json logprobs) const {
  Json choice = Json::object().set("index", index);
  if (request_.dialect == Dialect::chat)
    choice.set("delta", Json::object().set("content", text));
  else
    choice.set("text", text);
  return choice.set("logprobs", std::move(logprobs)).set("finish_reason", nullptr);
}

Json CompletionAnswer::usage_chunk() const {
  return frame(request_.dialect == Dialect::chat ? "chat.completion.chunk" : "text_completion")
      .set("choices", Json::array())
      .set("usage", usage())
      .set("timings", timings());
}

Json CompletionAnswer::complete_choice(std::size_t index) const {
  const Choice& choice = choices_[index];
  const std::size_t prompt = prompt_of(index);
  Json json = Json::object().set("index", index);
  TextPosition position = first_position(prompt);
  if (request_.dialect == Dialect::chat) {
    json.set("message",
             Json::object().set("role", "assistant").set("content", choice.text).set("refusal", nullptr));
    json.set("logprobs", logprobs(choice.tokens, position));
  } else {
    std::vector<TokenScore> scores = visible_prompt(prompt);
    scores.insert(scores.end(), choice.tokens.begin(), choice.tokens.end());
    json.set("text", request_.echoed.empty() ? choice.text : request_.echoed[prompt] + choice.text);
    json.set("logprobs", logprobs(scores, position));
  }
  return json.set("finish_reason", name_of(choice.finish.value_or(FinishReason::length)));
}

Json CompletionAnswer::complete_response() const {
  Json choices = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) choices.push(complete_choice(i));
  Json json = frame(request_.dialect == Dialect::chat ? "chat.completion" : "text_completion");
  json.set("choices", choices).set("usage", usage()).set("timings", timings());
  if (request_.dialect == Dialect::chat) json.set("tokens_dropped", request_.tokens_dropped);
  return json;
}

bool CompletionAnswer::finished() const {
  return std::ranges::all_of(choices_, [](const Choice& choice) { return choice.finish.has_value(); });
}

std::int64_t CompletionAnswer::prompt_tokens() const {
  std::int64_t tokens = 0;
  for (const Request& request : request_.prompts) tokens += static_cast<std::int64_t>(request.prompt.size());
  return tokens;
}

std::int64_t CompletionAnswer::generated_tokens() const {
  return totals().generated_tokens;
}

// Sums over prompts and samples. Each time is the maximum over the samples.
Usage CompletionAnswer::totals() const {
  Usage all{.prompt_tokens = prompt_tokens()};
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const Usage& one = choices_[i].usage;
    if (i % static_cast<std::size_t>(request_.samples) == 0) all.cached_tokens += one.cached_tokens;
    all.generated_tokens += one.generated_tokens;
    all.queue_seconds = std::max(all.queue_seconds, one.queue_seconds);
    all.prompt_seconds = std::max(all.prompt_seconds, one.prompt_seconds);
    all.decode_seconds = std::max(all.decode_seconds, one.decode_seconds);
  }
  return all;
}

double CompletionAnswer::first_token_seconds() const {
  return totals().seconds_to_first_token();
}

std::string_view CompletionAnswer::finish_reason() const {
  return choices_[0].finish ? name_of(*choices_[0].finish) : "none";
}

Json CompletionAnswer::usage() const {
  const Usage all = totals();
  return Json::object()
      .set("prompt_tokens", all.prompt_tokens)
      .set("completion_tokens", all.generated_tokens)
      .set("total_tokens", all.prompt_tokens + all.generated_tokens)
      .set("prompt_tokens_details", Json::object().set("cached_tokens", all.cached_tokens));
}

// Field names of llama.cpp. The first token of each sample is computed with the prompt, so it does
// not count as decoded.
Json CompletionAnswer::timings() const {
  const Usage all = totals();
  const std::int64_t read = all.prompt_tokens - all.cached_tokens;
  const std::int64_t decoded =
      std::max<std::int64_t>(all.generated_tokens - static_cast<std::int64_t>(choices_.size()), 0);
  return Json::object()
      .set("cache_n", all.cached_tokens)
      .set("prompt_n", read)
      .set("prompt_ms", all.prompt_seconds * 1000)
      .set("prompt_per_second", rate(read, all.prompt_seconds))
      .set("predicted_n", all.generated_tokens)
      .set("predicted_ms", all.decode_seconds * 1000)
      .set("predicted_per_second", rate(decoded, all.decode_seconds))
      .set("queue_ms", all.queue_seconds * 1000);
}

}  // namespace thimble
