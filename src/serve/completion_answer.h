// From the engine's events to the JSON that OpenAI's clients expect: whole, or chunk by chunk.
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

// Tokens and their log-probabilities as JSON, in the two forms of OpenAI's API.
// Of chats: {"content": [{token, logprob, bytes, top_logprobs: [...]}], "refusal": null}
Json chat_logprobs(const Tokenizer& tokenizer, std::span<const TokenScore> scores);

// Of texts: {tokens, token_logprobs, top_logprobs, text_offset}. Pieces of characters are spelled "bytes:\xe2\x80".
//
// Offsets count characters from the beginning of a choice's text; a token that begins inside of one has its offset.
// `place` is where the first token stands, and afterwards where the next one will.
struct TextPlace {
  std::size_t offset = 0;
  bool starts_text = false;       // SentencePiece drops a space there
  std::size_t prompt_tokens = 0;  // that are still to come: of the prompt the text shows special tokens, too
  std::string waiting = {};       // bytes of a character that is not whole yet
};
Json text_logprobs(const Tokenizer& tokenizer, std::span<const TokenScore> scores, TextPlace& place);

class CompletionAnswer {
 public:
  // Both outlive it.
  CompletionAnswer(const CompletionRequest& asked, const ServedModel& model);

  const std::string& id() const { return id_; }

  // Throws the sample's error, if the event has one, as an ApiError of status 500.
  void add(JobEvent event);
  Json whole() const;

  // The same for streams: the chunks that come of an event.
  std::vector<Json> chunks(JobEvent event);
  Json usage_chunk() const;

  // Over all that was added.
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
    bool begun = false;  // of a stream
    TextPlace place;     // of a stream: where its next token stands
  };

  std::size_t index_of(const JobEvent& event) const;
  std::size_t prompt_of(std::size_t index) const { return index / static_cast<std::size_t>(asked_.samples); }
  Choice& note(const JobEvent& event);
  void stream_event(const JobEvent& event, std::vector<Json>& chunks);
  void begin_choice(std::size_t index, std::vector<Json>& chunks);
  bool must_wait(const JobEvent& event) const;
  std::vector<TokenScore> shown_prompt(std::size_t prompt) const;
  TextPlace first_place(std::size_t prompt) const;
  Json logprobs(std::span<const TokenScore> scores, TextPlace& place) const;
  Json frame(std::string_view object) const;
  Json chunk(Json choice) const;
  Json piece(std::size_t index, std::string_view text, Json logprobs) const;
  Json whole_choice(std::size_t index) const;
  Json timings() const;
  bool finished() const;

  const CompletionRequest& asked_;
  const ServedModel& model_;
  std::string id_;
  std::int64_t created_;
  std::vector<Choice> choices_;
  std::vector<std::optional<std::vector<TokenScore>>> prompt_scores_;  // of each prompt, once known
  std::vector<JobEvent> held_;  // of a stream: until the prompt's scores are known
};

}  // namespace thimble
