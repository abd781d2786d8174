// Converts the engine's events to the JSON of OpenAI's API, as one response or as stream chunks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "infer/request.h"
#include "serve/completion_request.h"
#include "serve/engine.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// Log-probabilities of chats: {"content": [{token, logprob, bytes, top_logprobs: [...]}],
// "refusal": null}
Json chat_logprobs(const Tokenizer& tokenizer, std::span<const TokenScore> scores);

// Log-probabilities of text completions: {tokens, token_logprobs, top_logprobs, text_offset}. A
// token that is not valid UTF-8 is written as "bytes:\xe2\x80".
//
// text_offset counts characters from the beginning of the choice's text. A token that begins inside
// a character has the offset of that character. `position` is the position of the first token; on
// return, that of the next one.
struct TextPosition {
  std::size_t offset = 0;
  bool starts_text = false;       // SentencePiece drops a space at the next token
  std::size_t prompt_tokens = 0;  // prompt tokens left; in a prompt, special tokens are visible
  std::string waiting = {};       // bytes of an incomplete character
};
Json text_logprobs(const Tokenizer& tokenizer, std::span<const TokenScore> scores, TextPosition& position);

class CompletionAnswer {
 public:
  // `request` and `model` must outlive the object.
  CompletionAnswer(const CompletionRequest& request, const ServedModel& model);

  const std::string& id() const { return id_; }

  // Adds an event. If it contains an error, throws that as an ApiError with status 500.
  void add(JobEvent event);
  Json complete_response() const;

  // For streams: adds an event and returns the chunks to send.
  std::vector<Json> chunks(JobEvent event);
  Json usage_chunk() const;

  // Totals over all events added so far.
  Json usage() const;
  std::int64_t prompt_tokens() const;
  std::int64_t generated_tokens() const;
  double first_token_seconds() const;
  Usage totals() const;
  std::string_view finish_reason() const;  // of the first choice

 private:
  struct Choice {
    std::string text;
    std::vector<TokenScore> tokens;
    std::optional<FinishReason> finish;
    Usage usage;
    bool begun = false;     // of a stream: its first chunk was produced
    TextPosition position;  // of a stream: position of its next token
  };

  std::size_t index_of(const JobEvent& event) const;
  std::size_t prompt_of(std::size_t index) const {
    return index / static_cast<std::size_t>(request_.samples);
  }
  Choice& record(const JobEvent& event);
  void stream_event(const JobEvent& event, std::vector<Json>& chunks);
  void begin_choice(std::size_t index, std::vector<Json>& chunks);
  bool must_wait(const JobEvent& event) const;
  std::vector<TokenScore> visible_prompt(std::size_t prompt) const;
  TextPosition first_position(std::size_t prompt) const;
  Json logprobs(std::span<const TokenScore> scores, TextPosition& position) const;
  Json frame(std::string_view object) const;
  Json chunk(Json choice) const;
  Json piece(std::size_t index, std::string_view text, Json logprobs) const;
  Json complete_choice(std::size_t index) const;
  Json timings() const;
  bool finished() const;

  const CompletionRequest& request_;
  const ServedModel& model_;
  std::string id_;
  std::int64_t created_;
  std::vector<Choice> choices_;
  std::vector<std::optional<std::vector<TokenScore>>> prompt_scores_;  // of each prompt, once known
  std::vector<JobEvent> pending_;  // of a stream: events that wait for the prompt's scores
};

}  // namespace thimble
