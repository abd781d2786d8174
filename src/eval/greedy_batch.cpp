#include "eval/greedy_batch.h"

#include "base/error.h"
#include "infer/sampler.h"

namespace thimble {

namespace {

constexpr std::size_t kRowsAtATime = 512;  // of prompts, in one call

// The sequences of all slots and what is chosen for them next.
class GreedyBatch {
 public:
  GreedyBatch(Model& model, KvCache& cache, std::span<const std::vector<std::int32_t>> prompts,
              const GreedyOptions& options)
      : model_(model),
        cache_(cache),
        options_(options),
        sequences_(prompts.begin(), prompts.end()),
        next_(prompts.size(), options.end) {}

  void read_prompts() {
    for (std::size_t slot = 0; slot < sequences_.size(); ++slot)
      for (std::size_t position = 0; position < sequences_[slot].size(); ++position) {
        add_row(slot, position);
        if (rows_.size() >= kRowsAtATime) compute();
      }
    compute();
  }

  // Appends what was chosen, and chooses again. False: every sequence has ended.
  bool advance() {
    for (std::size_t slot = 0; slot < sequences_.size(); ++slot) {
      std::vector<std::int32_t>& sequence = sequences_[slot];
      if (next_[slot] == options_.end) continue;
      sequence.push_back(next_[slot]);
      next_[slot] = options_.end;  // unless it fits the context and is followed by another
      if (static_cast<std::int64_t>(sequence.size()) <= model_.config().context)
        add_row(slot, sequence.size() - 1);
    }
    const bool any = !rows_.empty();
    compute();
    return any;
  }

  std::vector<std::int32_t> answer(std::size_t slot, std::size_t prompt_size) const {
    return {sequences_[slot].begin() + static_cast<std::ptrdiff_t>(prompt_size), sequences_[slot].end()};
  }

 private:
  void add_row(std::size_t slot, std::size_t position) {
    const std::vector<std::int32_t>& sequence = sequences_[slot];
    const bool last = position + 1 == sequence.size();
    rows_.push_back({.token = sequence[position],
                     .previous = position > 0 ? sequence[position - 1] : -1,
                     .before_previous = position > 1 ? sequence[position - 2] : -1,
                     .position = static_cast<std::int32_t>(position),
                     .slot = static_cast<std::int32_t>(slot),
                     .wants_logits = last});
    if (last) choosers_.push_back(slot);
  }

  void compute() {
    if (rows_.empty()) return;
    // Some row must want logits: a block of one long prompt may hold none that does.
    if (choosers_.empty()) rows_.back().wants_logits = true;
    const Tensor logits = model_.decode(decode_rows(model_.config(), cache_.slots(), rows_), cache_);
    for (std::size_t i = 0; i < choosers_.size(); ++i)
      next_[choosers_[i]] = likeliest_.sample(
          {logits.row<float>(static_cast<std::int64_t>(i)), static_cast<std::size_t>(logits.cols)},
          options_.allowed);
    rows_.clear();
    choosers_.clear();
  }

  Model& model_;
  KvCache& cache_;
  GreedyOptions options_;
  Sampler likeliest_{{.temperature = 0}};
  std::vector<std::vector<std::int32_t>> sequences_;
  std::vector<std::int32_t> next_;
  std::vector<DecodeRow> rows_;
  std::vector<std::size_t> choosers_;  // slots whose last token is among the rows, in their order
};

}  // namespace

std::vector<std::vector<std::int32_t>> continue_greedily(Model& model, KvCache& cache,
                                                         std::span<const std::vector<std::int32_t>> prompts,
                                                         const GreedyOptions& options,
                                                         const Interrupt* interrupt) {
  check(std::cmp_less_equal(prompts.size(), cache.slots()), "[greedy] {} prompts for {} slots",
        prompts.size(), cache.slots());
  for (const auto& prompt : prompts)
    check(!prompt.empty() && std::cmp_less(prompt.size(), model.config().context),
          "[greedy] a prompt of {} tokens for a context of {}", prompt.size(), model.config().context);
  GreedyBatch batch(model, cache, prompts, options);
  batch.read_prompts();
  while (batch.advance())
    if (interrupt) interrupt->throw_if_asked();

  std::vector<std::vector<std::int32_t>> answers;
  for (std::size_t slot = 0; slot < prompts.size(); ++slot)
    answers.push_back(batch.answer(slot, prompts[slot].size()));
  return answers;
}

}  // namespace thimble
