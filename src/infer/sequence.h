// One sample on its way: its tokens, what chooses the next one, and what of its text may be shown.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "infer/request.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// Ends a text before the first stop string that is complete, however its pieces are cut.
//
// "First" is the one whose last byte comes first; of those that end at the same byte, the longest. What could still
// become a stop string is held back, so no piece of one is ever let through.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {}

  // More text; returns what may be shown now. Nothing after a stop.
  std::string push(std::string_view piece);
  // The text is over: returns what was held back.
  std::string finish();

  const std::optional<std::string>& stopped_by() const { return stopped_by_; }

 private:
  std::size_t held_back() const;

  std::vector<std::string> strings_;
  std::string waiting_;
  std::optional<std::string> stopped_by_;
};

class Sequence {
 public:
  // `tokenizer` may be nullptr: no text then.
  Sequence(RequestId id, int sample, std::shared_ptr<const Request> request, const Tokenizer* tokenizer,
           const ModelConfig& config);

  RequestId id() const { return id_; }
  const Request& request() const { return *request_; }
  // The prompt and what was generated. All but the last are in the slot once the prompt is read.
  const std::vector<TokenId>& tokens() const { return tokens_; }
  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }

  std::int64_t slot = -1;  // the batcher's

  void started(std::int64_t cached_tokens);  // it has a slot
  bool scores_prompt() const { return request_->score_prompt && sample_ == 0; }
  // The logits after tokens()[position], inside the prompt: scores the next one of it.
  void take_prompt_logits(std::int64_t position, std::span<const float> logits);
  // The logits after the last token: chooses the next, unless nothing more is wanted. Throws what the sampler throws:
  // then fail() is to follow.
  Event take_logits(std::span<const float> logits);
  Event cancel();
  Event fail(const Error& error);

  bool ended() const { return ended_; }

 private:
  struct Pending {
    TokenScore score;
    std::size_t begin;  // where its text begins in the sample's text
  };

  void read_prompt(Event& event);
  void choose(std::span<const float> logits, Event& event);
  void add_text(const std::string& text, Event& event);
  void release_tokens(bool all, Event& event);
  void end(FinishReason reason, Event& event);
  Event new_event() const { return {.request = id_, .sample = sample_}; }

  RequestId id_;
  int sample_;
  std::shared_ptr<const Request> request_;
  const ModelConfig& config_;
  std::int64_t allowed_;  // ids that mean something
  std::vector<TokenId> tokens_;
  Sampler sampler_;
  std::optional<StreamDecoder> decoder_;
  StopStrings stop_strings_;
  std::vector<Pending> pending_;  // tokens whose text is held back
  std::size_t text_bytes_ = 0, shown_bytes_ = 0;
  std::vector<TokenScore> prompt_scores_;
  bool ended_ = false;
  Usage usage_;
  double submitted_, started_ = 0, first_token_ = 0;
};

}  // namespace thimble
