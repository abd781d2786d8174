#include "eval/window_scorer.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"

namespace thimble {

namespace {

constexpr std::int64_t kMostLogits = std::int64_t{1} << 28;  // at a time: 1 GiB of f32
constexpr std::size_t kShortestRow = 64;

}  // namespace

WindowScorer::WindowScorer(Model& model, std::int64_t T, std::int64_t tokens_at_a_time, Sink sink)
    : model_(model), T_(static_cast<std::size_t>(T)), sink_(std::move(sink)) {
  check(T > 0 && T <= model.config().context, "context {} is more than the model's {}", T,
        model.config().context);
  std::int64_t tokens = tokens_at_a_time;
  if (tokens == 0) tokens = model.scored_at_once();
  if (tokens_at_a_time == 0 && model.device() == Device::cpu)  // a card's plan knows of them
    tokens = std::min(tokens, std::max<std::int64_t>(1, kMostLogits / model.config().vocab_size));
  most_rows_ = static_cast<std::size_t>(std::max<std::int64_t>(1, tokens / T));
  shared_ = static_cast<std::size_t>(std::min(T, tokens));
}

void WindowScorer::add(Window window) {
  const std::size_t count = window.input.size();
  check(count > 0 && count <= T_ && window.target.size() == count,
        "[score] a window of {} tokens and {} targets for rows of {}", count, window.target.size(), T_);
  const auto has_room = [&] {
    return std::ranges::find_if(used_, [&](std::size_t used) { return used + count <= shared_; });
  };
  auto row = has_room();
  if (row == used_.end() && used_.size() == most_rows_) {
    compute();
    row = has_room();
  }
  if (row == used_.end()) row = used_.insert(row, 0);
  waiting_.push_back({std::move(window), static_cast<std::size_t>(row - used_.begin()), *row});
  *row += count;
}

void WindowScorer::finish() {
  if (!waiting_.empty()) compute();
  collect();
}

void WindowScorer::compute() {
  // No longer than the longest row needs; powers of two, because every length is a program of its own.
  const std::size_t T = std::min(T_, std::max(kShortestRow, std::bit_ceil(std::ranges::max(used_))));
  // Where nothing lies, every place is a document of its own that is not scored.
  std::vector<std::int32_t> input(used_.size() * T, 0), target(input.size(), -1);
  std::vector<std::uint8_t> starts(input.size(), 1);
  for (const Waiting& waiting : waiting_) {
    const auto at = static_cast<std::ptrdiff_t>(waiting.row * T + waiting.begin);
    const auto count = static_cast<std::ptrdiff_t>(waiting.window.input.size());
    std::ranges::copy(waiting.window.input, input.begin() + at);
    std::ranges::copy(waiting.window.target, target.begin() + at);
    std::fill(starts.begin() + at + 1, starts.begin() + at + count, 0);
  }
  const Rows rows = grid_rows(model_.config(), static_cast<std::int64_t>(T), input, target, starts);
  collect();
  model_.queue_score(rows);
  computing_ = std::exchange(waiting_, {});
  computing_length_ = T;
  used_.clear();
  if (model_.device() == Device::cpu) collect();  // it has been computed
}

void WindowScorer::collect() {
  if (computing_.empty()) return;
  const std::vector<float> nats = model_.queued_nats();
  for (const Waiting& waiting : std::exchange(computing_, {}))
    sink_(waiting.window, std::span(nats).subspan(waiting.row * computing_length_ + waiting.begin,
                                                  waiting.window.input.size()));
}

}  // namespace thimble
