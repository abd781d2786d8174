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

void check_answered(const Event& event) {
  if (event.error) throw ApiError(500, error_type_of(500), event.error->what());
  if (event.finish == FinishReason::cancelled)
    throw ApiError(503, error_type_of(503), "the server is shutting down").retry_after(1);
}

namespace {

// Calls write(score) for every score, with commas between.
template <class Write>
void write_list(ReplyWriter& out, const ScoreParts& scores, Write write) {
  std::string_view separator = "[";
  for (const std::span<const TokenScore> part : scores)
    for (const TokenScore& score : part) {
      out.add(separator);
      write(score);
      separator = ",";
    }
  out.add(separator == "[" ? "[]" : "]");
}

}  // namespace

void write_chat_logprobs(ReplyWriter& out, const Tokenizer& tokenizer, const ScoreParts& scores) {
  out.add("{\"content\":");
  write_list(out, scores, [&](const TokenScore& score) {
    Json top = Json::array();
    for (const auto& [id, logprob] : score.top) top.push(chat_token(tokenizer, id, logprob));
    out.add(chat_token(tokenizer, score.id, score.logprob).set("top_logprobs", std::move(top)).dump());
  });
  out.add(",\"refusal\":null}");
}

void write_text_logprobs(ReplyWriter& out, const Tokenizer& tokenizer, const ScoreParts& scores,
                         TextPosition& position) {
  out.add("{\"tokens\":");
  write_list(out, scores,
             [&](const TokenScore& score) { out.add(Json(text_token(tokenizer, score.id)).dump()); });
  out.add(",\"token_logprobs\":");
  write_list(out, scores,
             [&](const TokenScore& score) { out.add(Json(static_cast<double>(score.logprob)).dump()); });
  out.add(",\"top_logprobs\":");
  write_list(out, scores, [&](const TokenScore& score) { out.add(text_top(tokenizer, score).dump()); });
  out.add(",\"text_offset\":");
  write_list(out, scores, [&](const TokenScore& score) {
    out.add(std::to_string(advance(tokenizer, score.id, position)));
  });
  out.add("}");
}

namespace {

double rate(std::int64_t tokens, double seconds) {
  return tokens > 0 && seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

// The text of an object without its closing brace, and of members that continue it.
std::string opened(const Json& object) {
  std::string text = object.dump();
  text.pop_back();
  return text;
}
std::string continued(const Json& members) {
  return members.size() > 0 ? "," + members.dump().substr(1) : "}";
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

CompletionAnswer::Choice& CompletionAnswer::record(JobEvent& event) {
  check_answered(event.event);
  Choice& choice = choices_[index_of(event)];
  if (!event.event.prompt.empty()) prompt_scores_[event.request] = std::move(event.event.prompt);
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

void CompletionAnswer::stream(JobEvent event, ReplyWriter& out) {
  record(event);
  pending_.push_back(std::move(event));
  std::vector<JobEvent> pending = std::exchange(pending_, {});
  for (JobEvent& next : pending) {
    if (must_wait(next))
      pending_.push_back(std::move(next));
    else
      stream_event(next, out);
  }
}

// With echo, a choice starts with the scored prompt. Only sample 0 scores it, so events that arrive
// before those scores must wait.
bool CompletionAnswer::must_wait(const JobEvent& event) const {
  const bool echoes_scores = !request_.echoed.empty() && request_.logprobs;
  return echoes_scores && !prompt_scores_[event.request];
}

void CompletionAnswer::stream_event(const JobEvent& event, ReplyWriter& out) {
  const std::size_t index = index_of(event);
  if (!choices_[index].begun) begin_choice(index, out);
  if (!event.event.text.empty() || !event.event.tokens.empty())
    write_piece(index, event.event.text, {event.event.tokens}, out);
  if (!event.event.finish) return;
  Json last = Json::object().set("index", index);
  if (request_.dialect == Dialect::chat)
    last.set("delta", Json::object());
  else
    last.set("text", "");
  last.set("logprobs", nullptr).set("finish_reason", name_of(*event.event.finish));
  Json more = Json::object();
  if (request_.dialect == Dialect::chat) more.set("tokens_dropped", request_.tokens_dropped);
  if (finished() && !request_.include_usage) more.set("timings", timings());
  begin_chunk(out);
  out.add(last.dump());
  end_chunk(out, std::move(more));
}

void CompletionAnswer::begin_choice(std::size_t index, ReplyWriter& out) {
  choices_[index].begun = true;
  if (request_.dialect == Dialect::chat) {
    begin_chunk(out);
    out.add(Json::object()
                .set("index", index)
                .set("delta", Json::object().set("role", "assistant").set("content", ""))
                .set("logprobs", nullptr)
                .set("finish_reason", nullptr)
                .dump());
    end_chunk(out);
  } else if (!request_.echoed.empty()) {
    const std::size_t prompt = prompt_of(index);
    write_piece(index, request_.echoed[prompt], {visible_prompt(prompt)}, out);
  }
}

std::span<const TokenScore> CompletionAnswer::visible_prompt(std::size_t prompt) const {
  if (!prompt_scores_[prompt]) return {};
  const std::span<const TokenScore> all = *prompt_scores_[prompt];
  return all.subspan(std::min(request_.hidden_prompt_tokens[prompt], all.size()));
}

void CompletionAnswer::write_logprobs(const ScoreParts& scores, TextPosition& position,
                                      ReplyWriter& out) const {
  if (!request_.logprobs)
    out.add("null");
  else if (request_.dialect == Dialect::chat)
    write_chat_logprobs(out, *model_.tokenizer, scores);
  else
    write_text_logprobs(out, *model_.tokenizer, scores, position);
}

Json CompletionAnswer::frame(std::string_view object) const {
  return Json::object()
      .set("id", id_)
      .set("object", object)
      .set("created", created_)
      .set("model", model_.name)
      .set("system_fingerprint", fmt::format("thimble-{}", version()));
}

void CompletionAnswer::begin_chunk(ReplyWriter& out) const {
  const bool chat = request_.dialect == Dialect::chat;
  out.add("data: " + opened(frame(chat ? "chat.completion.chunk" : "text_completion")) + ",\"choices\":[");
}

void CompletionAnswer::end_chunk(ReplyWriter& out, Json more) const {
  // OpenAI's API sends "usage": null in every chunk if include_usage is set, and no field
  // otherwise.
  if (request_.include_usage) more.set("usage", nullptr);
  out.add("]" + continued(more) + "\n\n");
}

void CompletionAnswer::write_piece(std::size_t index, std::string_view text, const ScoreParts& scores,
                                   ReplyWriter& out) {
  Json choice = Json::object().set("index", index);
  if (request_.dialect == Dialect::chat)
    choice.set("delta", Json::object().set("content", text));
  else
    choice.set("text", text);
  begin_chunk(out);
  out.add(opened(choice) + ",\"logprobs\":");
  write_logprobs(scores, choices_[index].position, out);
  out.add(",\"finish_reason\":null}");
  end_chunk(out);
}

void CompletionAnswer::write_usage_chunk(ReplyWriter& out) const {
  begin_chunk(out);
  out.add("]" + continued(Json::object().set("usage", usage()).set("timings", timings())) + "\n\n");
}

void CompletionAnswer::write_choice(std::size_t index, ReplyWriter& out) const {
  const Choice& choice = choices_[index];
  const std::size_t prompt = prompt_of(index);
  Json json = Json::object().set("index", index);
  ScoreParts scores = {choice.tokens};
  if (request_.dialect == Dialect::chat) {
    json.set("message",
             Json::object().set("role", "assistant").set("content", choice.text).set("refusal", nullptr));
  } else {
    scores.insert(scores.begin(), visible_prompt(prompt));
    json.set("text", request_.echoed.empty() ? choice.text : request_.echoed[prompt] + choice.text);
  }
  TextPosition position = first_position(prompt);
  out.add(opened(json) + ",\"logprobs\":");
  write_logprobs(scores, position, out);
  const std::string_view reason = name_of(choice.finish.value_or(FinishReason::length));
  out.add(continued(Json::object().set("finish_reason", reason)));
}

void CompletionAnswer::write_response(ReplyWriter& out) const {
  const bool chat = request_.dialect == Dialect::chat;
  out.add(opened(frame(chat ? "chat.completion" : "text_completion")) + ",\"choices\":[");
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (i > 0) out.add(",");
    write_choice(i, out);
  }
  Json rest = Json::object().set("usage", usage()).set("timings", timings());
  if (chat) rest.set("tokens_dropped", request_.tokens_dropped);
  out.add("]" + continued(rest) + "\n");
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
