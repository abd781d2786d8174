// One sample in progress: its tokens, its sampler, and the text not yet sent.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "infer/constraint.h"
#include "infer/request.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// Ends a text before the first complete stop string, even if that is split across pieces.
//
// The first stop string is the one that ends first; among those that end at the same byte, the
// longest. A suffix of the text that may still become a stop string is held back, so no part of one
// is ever returned.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {}

  // Appends text and returns the part that can be shown now; empty after a stop.
  std::string push(std::string_view piece);
  // Ends the text and returns the part that was held back.
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
  // If `tokenizer` is nullptr, events contain no text.
  Sequence(RequestId id, int sample, std::shared_ptr<const Request> request, const Tokenizer* tokenizer,
           const ModelConfig& config);

  RequestId id() const { return id_; }
  const Request& request() const { return *request_; }
  // Prompt and generated tokens, without those dropped by a slide. Once they are processed, all but
  // the last are in the slot.
  const std::vector<TokenId>& tokens() const { return tokens_; }
  // The tokens before the first one generated from them: the prompt, or what a slide has left.
  std::span<const TokenId> prompt() const {
    return std::span(tokens_).first(static_cast<std::size_t>(prompt_size_));
  }
  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }

  std::int64_t slot = -1;  // set by the batcher; -1: none

  void started(std::int64_t cached_tokens);  // called when a slot was assigned
  bool scores_prompt() const {
    return request_->score_prompt && sample_ == 0 && usage_.generated_tokens == 0;
  }
  // Takes the logits after tokens()[position], inside the prompt, and scores the next prompt token.
  void take_prompt_logits(std::int64_t position, std::span<const float> logits);
  // Takes the logits after the last token and samples the next one, or ends if max_tokens is 0.
  // Throws what the sampler throws; the caller must then call fail().
  Event take_logits(std::span<const float> logits);
  Event cancel();
  Event fail(const Error& error);

  bool ended() const { return ended_; }

 private:
  struct Pending {
    TokenScore score;
    std::size_t begin;  // byte offset of its text in the sample's text
  };

  void slide();
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
  std::int64_t allowed_;  // ids below this can be sampled
  std::optional<TokenId> bos_;
  std::vector<TokenId> tokens_;
  std::int64_t prompt_size_ = 0;
  Sampler sampler_;
  std::optional<ConstrainedText> constrained_;
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
