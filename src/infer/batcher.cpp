#include "infer/batcher.h"

#include <algorithm>

namespace thimble {

std::int64_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

std::int64_t Slots::free_count() const {
  return std::ranges::count(slots_, false, &Slot::in_use);
}

// The next row attends to the last `window` positions, with its own.
bool Slots::continues_from(const Slot& slot, std::int64_t length) const {
  return slot.ring_begin == 0 || length - ring_.window + 1 >= slot.ring_begin;
}

void Slots::truncate(Slot& slot, std::int64_t length) {
  slot.tokens.resize(static_cast<std::size_t>(length));
  if (length == 0) slot.ring_begin = 0;  // everything is written again
}

void Slots::append(std::int64_t slot, TokenId token) {
  at(slot).tokens.push_back(token);
  if (ring_.rows > 0) at(slot).ring_begin = std::max(at(slot).ring_begin, size(slot) - ring_.rows);
}

Slots::Prefix Slots::longest_prefix(std::span<const TokenId> prompt) const {
  Prefix best;
  for (std::int64_t slot = 0; slot < count(); ++slot) {
    const std::int64_t common = common_prefix(tokens(slot), prompt);
    const std::int64_t length = continues_from(at(slot), common) ? common : 0;
    const bool free_and_equal =
        length > 0 && length == best.length && at(best.slot).in_use && !at(slot).in_use;
    if (length > best.length || free_and_equal) best = {slot, length};
  }
  return best;
}

std::int64_t Slots::oldest_free() const {
  std::int64_t oldest = -1;
  for (std::int64_t slot = 0; slot < count(); ++slot)
    if (!at(slot).in_use && (oldest < 0 || at(slot).released < at(oldest).released)) oldest = slot;
  return oldest;
}

std::int64_t Slots::take(Prefix prefix) {
  const bool continues =
      prefix.slot >= 0 && !at(prefix.slot).in_use && 2 * prefix.length >= size(prefix.slot);
  const std::int64_t slot = continues ? prefix.slot : oldest_free();
  if (slot < 0) return slot;
  at(slot).in_use = true;
  truncate(at(slot), slot == prefix.slot ? prefix.length : 0);
  return slot;
}

void Slots::copied(std::int64_t slot, Prefix prefix) {
  const auto& from = tokens(prefix.slot);
  at(slot).tokens.assign(from.begin(), from.begin() + prefix.length);
  at(slot).ring_begin = at(prefix.slot).ring_begin;
}

void Slots::keep_prefix_of(std::int64_t slot, std::span<const TokenId> next) {
  const std::int64_t kept = common_prefix(tokens(slot), next.first(next.size() - 1));
  truncate(at(slot), continues_from(at(slot), kept) ? kept : 0);
}

void Slots::release(std::int64_t slot) {
  at(slot).in_use = false;
  at(slot).released = ++releases_;
}

namespace {

constexpr std::int64_t kBlock = 64;            // prompt blocks end at multiples of this
constexpr std::int64_t kMinSharedToWait = 64;  // tokens saved; for fewer, recompute

BatcherOptions checked(const BatcherOptions& options) {
  check(options.slots >= 1, "slots must be >= 1, got {}", options.slots);
  check(options.rows_per_step >= 0, "rows_per_step must be >= 0, got {}", options.rows_per_step);
  return options;
}

bool has_content(const Event& event) {
  return event.finish || !event.text.empty() || !event.tokens.empty() || !event.prompt.empty();
}

}  // namespace

Batcher::Batcher(Model& model, const Tokenizer* tokenizer, const BatcherOptions& options)
    : model_(model),
      tokenizer_(tokenizer),
      options_(checked(options)),
      cache_(model.make_cache(options.slots)),
      slots_(options.slots, cache_ring(model.config())) {
  if (options_.rows_per_step == 0) options_.rows_per_step = model.max_decode_rows();
}

Batcher::~Batcher() = default;

RequestId Batcher::submit(Request request) {
  check_request(request, model_.config(), tokenizer_);
  const auto shared = std::make_shared<const Request>(std::move(request));
  ++last_id_;
  for (int sample = 0; sample < shared->samples; ++sample)
    waiting_.push_back(std::make_unique<Sequence>(last_id_, sample, shared, tokenizer_, model_.config()));
  return last_id_;
}

std::vector<Event> Batcher::cancel(RequestId id) {
  std::vector<Event> events;
  const auto cancel_one = [&](const std::unique_ptr<Sequence>& sequence) {
    if (sequence->id() == id) events.push_back(sequence->cancel());
  };
  std::ranges::for_each(active_, cancel_one);
  std::ranges::for_each(waiting_, cancel_one);
  drop_ended();
  return events;
}

std::vector<Event> Batcher::step() {
  admit();
  plan_rows();
  std::vector<Event> events;
  if (rows_.empty()) return events;
  const Tensor logits = model_.decode(decode_rows(model_.config(), cache_.slots(), rows_), cache_);
  for (const DecodeRow& row : rows_) slots_.append(row.slot, row.token);
  take_logits(logits, events);
  drop_ended();
  return events;
}

// A sequence that waits for another one to process their shared prefix reserves a free slot, so
// that later requests cannot overtake it.
void Batcher::admit() {
  std::int64_t kept_free = 0;
  for (auto next = waiting_.begin(); next != waiting_.end() && slots_.free_count() > kept_free;) {
    Sequence& sequence = **next;
    // The last token is always recomputed for its logits; a scored prompt is recomputed completely.
    const std::span<const TokenId> prompt = sequence.prompt();
    const auto reusable = sequence.scores_prompt() ? prompt.first(0) : prompt.first(prompt.size() - 1);
    const Slots::Prefix prefix = slots_.longest_prefix(reusable);
    if (should_wait(sequence, reusable, prefix.length)) {
      ++kept_free;
      ++next;
      continue;
    }
    sequence.slot = slots_.take(prefix);
    if (prefix.length > 0 && sequence.slot != prefix.slot) {
      cache_.copy_prefix(prefix.slot, sequence.slot, prefix.length);
      slots_.copied(sequence.slot, prefix);
    }
    sequence.started(prefix.length);
    active_.push_back(std::move(*next));
    next = waiting_.erase(next);
  }
}

bool Batcher::should_wait(const Sequence& sequence, std::span<const TokenId> reusable,
                          std::int64_t cached) const {
  return std::ranges::any_of(active_, [&](const std::unique_ptr<Sequence>& other) {
    const std::int64_t shared = common_prefix(other->prompt(), reusable);
    const bool being_read = slots_.size(other->slot) < shared;
    const std::int64_t gain = shared - cached;
    return being_read && gain > 0 && (other->id() == sequence.id() || gain >= kMinSharedToWait);
  });
}

void Batcher::plan_rows() {
  rows_.clear();
  logit_rows_.clear();
  const auto missing = [&](const Sequence& sequence) { return sequence.size() - slots_.size(sequence.slot); };
  for (const auto& sequence : active_)
    if (missing(*sequence) == 1) add_rows(*sequence, 1);
  // At least one block, so that prompts make progress even when all rows are used for generation.
  std::int64_t left = std::max(options_.rows_per_step - static_cast<std::int64_t>(rows_.size()), kBlock);
  for (const auto& sequence : active_) {
    if (missing(*sequence) == 1) continue;
    std::int64_t count = 0;
    while (count < missing(*sequence)) {
      const std::int64_t position = slots_.size(sequence->slot) + count;
      const std::int64_t block = std::min(missing(*sequence) - count, kBlock - position % kBlock);
      if (block > left || count + block > model_.max_slot_rows()) break;
      count += block;
      left -= block;
    }
    add_rows(*sequence, count);
  }
  // Model::decode requires at least one row with logits; a block inside a prompt has none.
  if (!rows_.empty() && logit_rows_.empty()) rows_.back().wants_logits = true;
}

// Adds rows for the next `count` tokens of the sequence that are not yet in its slot.
void Batcher::add_rows(Sequence& sequence, std::int64_t count) {
  const std::vector<TokenId>& tokens = sequence.tokens();
  const std::int64_t begin = slots_.size(sequence.slot);
  for (std::int64_t position = begin; position < begin + count; ++position) {
    const auto before = [&](std::int64_t back) {
      return position < back ? -1 : tokens[static_cast<std::size_t>(position - back)];
    };
    const bool wants = position + 1 == sequence.size() || sequence.scores_prompt();
    rows_.push_back({.token = before(0),
                     .previous = before(1),
                     .before_previous = before(2),
                     .position = static_cast<std::int32_t>(position),
                     .slot = static_cast<std::int32_t>(sequence.slot),
                     .wants_logits = wants});
    if (wants) logit_rows_.emplace_back(&sequence, position);
  }
}

void Batcher::take_logits(const Tensor& logits, std::vector<Event>& events) {
  for (std::size_t i = 0; i < logit_rows_.size(); ++i) {
    const auto& [sequence, position] = logit_rows_[i];
    if (sequence->ended()) continue;  // it failed inside its prompt
    const std::span row(logits.row<float>(static_cast<std::int64_t>(i)),
                        static_cast<std::size_t>(logits.cols));
    try {
      if (position + 1 < sequence->size()) {
        sequence->take_prompt_logits(position, row);
        continue;
      }
      if (Event event = sequence->take_logits(row); has_content(event)) events.push_back(std::move(event));
      // Not longer than the slot's tokens: the sequence has slid.
      if (!sequence->ended() && sequence->size() <= slots_.size(sequence->slot))
        slots_.keep_prefix_of(sequence->slot, sequence->tokens());
    } catch (const Error& error) {
      events.push_back(sequence->fail(error));
    }
  }
}

void Batcher::drop_ended() {
  const auto ended = [](const std::unique_ptr<Sequence>& sequence) { return sequence->ended(); };
  for (const auto& sequence : active_)
    if (sequence->ended()) slots_.release(sequence->slot);
  std::erase_if(active_, ended);
  std::erase_if(waiting_, ended);
}

}  // namespace thimble
