// Writes the engine's events as the JSON of OpenAI's API, as one response or as stream chunks.
// Neither is ever in memory as a whole: with log-probabilities it may be a hundred times larger
// than its tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "http/message.h"
#include "infer/request.h"
#include "serve/completion_request.h"
#include "serve/engine.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// Throws an ApiError if the event says that its sample failed or was given up.
void check_answered(const Event& event);

// Scores of consecutive tokens, in parts: those of a prompt and those of an answer.
using ScoreParts = std::vector<std::span<const TokenScore>>;

// Writes the log-probabilities of chats: {"content": [{token, logprob, bytes, top_logprobs:
// [...]}], "refusal": null}
void write_chat_logprobs(ReplyWriter& out, const Tokenizer& tokenizer, const ScoreParts& scores);

// Writes the log-probabilities of text completions: {tokens, token_logprobs, top_logprobs,
// text_offset}. A token that is not valid UTF-8 is written as "bytes:\xe2\x80".
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
void write_text_logprobs(ReplyWriter& out, const Tokenizer& tokenizer, const ScoreParts& scores,
                         TextPosition& position);

class CompletionAnswer {
 public:
  // `request` and `model` must outlive the object.
  CompletionAnswer(const CompletionRequest& request, const ServedModel& model);

  const std::string& id() const { return id_; }

  // Adds an event. Throws what check_answered throws.
  void add(JobEvent event);
  void write_response(ReplyWriter& out) const;

  // For streams: adds an event and writes the chunks to send.
  void stream(JobEvent event, ReplyWriter& out);
  void write_usage_chunk(ReplyWriter& out) const;

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
  Choice& record(JobEvent& event);
  void stream_event(const JobEvent& event, ReplyWriter& out);
  void begin_choice(std::size_t index, ReplyWriter& out);
  bool must_wait(const JobEvent& event) const;
  std::span<const TokenScore> visible_prompt(std::size_t prompt) const;
  TextPosition first_position(std::size_t prompt) const;
  void write_logprobs(const ScoreParts& scores, TextPosition& position, ReplyWriter& out) const;
  void write_choice(std::size_t index, ReplyWriter& out) const;
  Json frame(std::string_view object) const;
  // A chunk is written as begin_chunk, one choice, end_chunk.
  void begin_chunk(ReplyWriter& out) const;
  void end_chunk(ReplyWriter& out, Json more = Json::object()) const;
  void write_piece(std::size_t index, std::string_view text, const ScoreParts& scores, ReplyWriter& out);
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
