#include "infer/sequence.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/clock.h"

namespace thimble {

std::string StopStrings::push(std::string_view piece) {
  if (stopped_by_) return {};
  waiting_ += piece;
  // A stop string cannot begin in text that was already returned: that text would have been held
  // back.
  std::size_t first_end = std::string::npos;
  for (const std::string& string : strings_) {
    const std::size_t begin = waiting_.find(string);
    if (begin == std::string::npos) continue;
    const std::size_t end = begin + string.size();
    if (end > first_end || (end == first_end && string.size() <= stopped_by_->size())) continue;
    first_end = end;
    stopped_by_ = string;
  }
  const std::size_t shown = stopped_by_ ? first_end - stopped_by_->size() : waiting_.size() - held_back();
  std::string text = waiting_.substr(0, shown);
  waiting_.erase(0, stopped_by_ ? waiting_.size() : shown);
  return text;
}

std::string StopStrings::finish() {
  return std::exchange(waiting_, {});
}

// Length of the longest suffix of the text that is a proper prefix of a stop string.
std::size_t StopStrings::held_back() const {
  std::size_t longest = 0;
  const std::string_view text = waiting_;
  for (const std::string& string : strings_)
    for (std::size_t size = std::min(text.size(), string.size() - 1); size > longest; --size)
      if (text.ends_with(std::string_view(string).substr(0, size))) longest = size;
  return longest;
}

namespace {

SamplingOptions for_sample(SamplingOptions options, int sample) {
  options.seed += static_cast<std::uint64_t>(sample);
  return options;
}

}  // namespace

Sequence::Sequence(RequestId id, int sample, std::shared_ptr<const Request> request,
                   const Tokenizer* tokenizer, const ModelConfig& config)
    : id_(id),
      sample_(sample),
      request_(std::move(request)),
      config_(config),
      allowed_(tokenizer ? tokenizer->vocab_size() : config.vocab_size),
      tokens_(request_->prompt),
      sampler_(for_sample(request_->sampling, sample), allowed_, tokens_),
      stop_strings_(request_->stop_strings),
      submitted_(seconds_now()) {
  if (tokenizer) {
    decoder_.emplace(*tokenizer, request_->starts_text);
    bos_ = tokenizer->special().bos;
  }
  if (request_->constraint) constrained_.emplace(request_->constraint);
  usage_.prompt_tokens = prompt_size_ = size();
  if (size() > config_.context) slide();
}

void Sequence::slide() {
  usage_.dropped_tokens += slide_window(tokens_, config_.context, bos_);
  prompt_size_ = size();
}

void Sequence::started(std::int64_t cached_tokens) {
  started_ = seconds_now();
  usage_.queue_seconds = started_ - submitted_;
  usage_.cached_tokens = cached_tokens;
}

void Sequence::take_prompt_logits(std::int64_t position, std::span<const float> logits) {
  if (prompt_scores_.empty())
    prompt_scores_.push_back(
        {.id = tokens_.front(), .logprob = std::numeric_limits<float>::quiet_NaN(), .top = {}});
  const TokenId next = tokens_[static_cast<std::size_t>(position) + 1];
  prompt_scores_.push_back(score_token(logits, next, request_->logprobs, allowed_));
}

Event Sequence::take_logits(std::span<const float> logits) {
  Event event = new_event();
  if (usage_.generated_tokens == 0) read_prompt(event);
  if (request_->max_tokens == 0)
    end(FinishReason::length, event);
  else
    choose(logits, event);
  return event;
}

void Sequence::read_prompt(Event& event) {
  first_token_ = seconds_now();
  usage_.prompt_seconds = first_token_ - started_;
  if (!scores_prompt()) return;
  if (prompt_scores_.empty())  // a prompt of one token
    prompt_scores_.push_back(
        {.id = tokens_.front(), .logprob = std::numeric_limits<float>::quiet_NaN(), .top = {}});
  event.prompt = std::exchange(prompt_scores_, {});
}

void Sequence::choose(std::span<const float> logits, Event& event) {
  if (constrained_ && constrained_->complete())  // only the empty text is allowed
    return end(FinishReason::stop, event);
  const std::vector<TokenId>& ends = request_->stop_ids;
  const bool too_early = usage_.generated_tokens < request_->min_tokens;
  const std::span<const TokenId> banned = too_early ? std::span(ends) : std::span<const TokenId>();
  const bool first = request_->starts_text && usage_.generated_tokens == 0;
  std::shared_ptr<const TokenMask> mask;
  std::optional<AllowedTokens> allowed;
  if (constrained_) {
    mask = constrained_->mask(first);
    allowed.emplace(
        AllowedTokens{*mask, constrained_->accepts() ? std::span(ends) : std::span<const TokenId>()});
  }
  const TokenId next = sampler_.sample(logits, banned, allowed ? &*allowed : nullptr);
  ++usage_.generated_tokens;
  if (std::ranges::find(ends, next) != ends.end()) return end(FinishReason::stop, event);

  TokenScore score{next};
  if (request_->logprobs != kNoLogprobs)
    score = allowed && !request_->raw_logprobs ? score_token(logits, next, request_->logprobs, *allowed)
                                               : score_token(logits, next, request_->logprobs, allowed_);
  pending_.push_back({std::move(score), text_bytes_});
  tokens_.push_back(next);
  if (decoder_) add_text(decoder_->push(next), event);
  if (constrained_) constrained_->advance(next, first);
  if (stop_strings_.stopped_by()) return end(FinishReason::stop, event);
  if (constrained_ && constrained_->complete()) return end(FinishReason::stop, event);  // nothing can follow
  // The last token may exceed the context by one because it is never fed to the model.
  const bool full = size() > config_.context;
  if (usage_.generated_tokens >= request_->max_tokens || (full && !request_->slides))
    return end(FinishReason::length, event);
  if (full) slide();
  release_tokens(request_->stop_strings.empty(), event);
}

void Sequence::add_text(const std::string& text, Event& event) {
  text_bytes_ += text.size();
  const std::string shown = stop_strings_.push(text);
  shown_bytes_ += shown.size();
  event.text += shown;
}

void Sequence::release_tokens(bool all, Event& event) {
  const auto held = all ? pending_.end() : std::ranges::find_if(pending_, [&](const Pending& pending) {
    return pending.begin >= shown_bytes_;
  });
  for (auto pending = pending_.begin(); pending != held; ++pending)
    event.tokens.push_back(std::move(pending->score));
  pending_.erase(pending_.begin(), held);
}

void Sequence::end(FinishReason reason, Event& event) {
  // If the model ends the text inside a character, emit U+FFFD. If a limit cut the text there, drop
  // the incomplete character.
  const bool ended_by_model = reason == FinishReason::stop && !stop_strings_.stopped_by();
  if (decoder_ && ended_by_model) add_text(decoder_->finish(), event);
  const bool cut = stop_strings_.stopped_by().has_value();
  if (!cut) event.text += stop_strings_.finish();
  release_tokens(!cut, event);
  usage_.decode_seconds = first_token_ > 0 ? seconds_now() - first_token_ : 0;
  event.finish = reason;
  event.stop_string = stop_strings_.stopped_by();
  event.usage = usage_;
  ended_ = true;
}

Event Sequence::cancel() {
  Event event = new_event();
  end(FinishReason::cancelled, event);
  return event;
}

Event Sequence::fail(const Error& error) {
  Event event = new_event();
  event.error = error;
  end(FinishReason::error, event);
  return event;
}

}  // namespace thimble
