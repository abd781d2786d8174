#include "eval/score.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/error.h"
#include "eval/window_scorer.h"
#include "eval/windows.h"

namespace thimble {

namespace {

// Where each stretch that is read by itself begins, and behind the last its end.
std::vector<std::uint64_t> stretches(const TokenSet& set, std::uint64_t T, bool isolate) {
  std::vector<std::uint64_t> borders;
  if (isolate) {
    borders = set.document_starts();
    borders.push_back(set.size());
  } else {
    const std::uint64_t targets = set.size() - 1;
    borders = {0, targets < T ? targets : targets / T * T};
  }
  return borders;
}

// Leaves the first `most` targets; returns how many there are.
std::int64_t limit_targets(std::int64_t most, std::vector<std::int32_t>& targets) {
  std::int64_t count = 0;
  for (std::int32_t& target : targets)
    if (target >= 0 && ++count > most) target = -1;
  return std::min(count, most);
}

// One call of score_set.
class Scoring {
 public:
  Scoring(Model& model, const ByteTable& bytes, const TokenSet& set, const ScoreOptions& options,
          const ProgressOutput& progress, const Interrupt* interrupt)
      : bytes_(bytes),
        set_(set),
        T_(options.context > 0 ? options.context : model.config().context),
        stride_(options.stride > 0 ? options.stride : T_),
        left_(options.val_tokens > 0 ? options.val_tokens : std::numeric_limits<std::int64_t>::max()),
        limited_(options.val_tokens > 0),
        borders_(stretches(set, static_cast<std::uint64_t>(T_), options.isolate)),
        rank_(static_cast<std::uint64_t>(options.rank)),
        ranks_(static_cast<std::uint64_t>(options.ranks)),
        interrupt_(interrupt),
        on_scored_(options.on_scored),
        bar_(progress, "scoring", "tokens",
             std::min(borders_.back(), limited_ ? static_cast<std::uint64_t>(left_) : borders_.back())),
        scorer_(model, T_, options.tokens_at_a_time,
                [this](const Window& window, std::span<const float> nats) { count(window, nats); }) {
    check(stride_ <= T_, "stride {} is more than the context of {}: tokens between windows would be left out",
          stride_, T_);
  }

  Score run() {
    for (std::size_t i = 0; i + 1 < borders_.size() && left_ > 0; ++i)
      read(borders_[i], borders_[i + 1] - borders_[i]);
    scorer_.finish();
    check(score_.tokens > 0 || ranks_ > 1, "there is nothing to score");
    return score_;
  }

 private:
  void read(std::uint64_t begin, std::uint64_t length) {
    if (length == 0) return;
    const SlidingWindows windows(length, static_cast<std::uint64_t>(T_), static_cast<std::uint64_t>(stride_));
    for (std::uint64_t i = 0; i < windows.count() && left_ > 0; ++i) {
      if (interrupt_) interrupt_->throw_if_asked();
      const SlidingWindows::Span span = windows.at(i);
      Grid grid;
      set_.append(begin + span.begin, span.count, AfterLast::bos, grid);
      std::fill_n(grid.target.begin(), span.scored_from, -1);
      const std::int64_t targets = limit_targets(left_, grid.target);
      left_ -= targets;
      if (targets > 0 && windows_++ % ranks_ == rank_)
        scorer_.add({std::move(grid.input), std::move(grid.target), begin + span.begin + span.count});
    }
  }

  void count(const Window& window, std::span<const float> nats) {
    for (std::size_t i = 0; i < nats.size(); ++i) {
      if (window.target[i] < 0) continue;
      score_.nats += nats[i];
      score_.bytes += bytes_.bytes(window.input[i], window.target[i]);
      ++score_.tokens;
    }
    if (on_scored_) on_scored_(score_.tokens);
    bar_.update(limited_ ? static_cast<std::uint64_t>(score_.tokens) : window.tag);
  }

  const ByteTable& bytes_;
  const TokenSet& set_;
  std::int64_t T_, stride_, left_;
  bool limited_;
  std::vector<std::uint64_t> borders_;
  std::uint64_t rank_, ranks_, windows_ = 0;
  const Interrupt* interrupt_;
  std::function<void(std::int64_t)> on_scored_;
  Score score_;
  ProgressBar bar_;
  WindowScorer scorer_;
};

}  // namespace

double Score::bits_per_byte() const {
  return bytes > 0 ? nats / std::numbers::ln2 / static_cast<double>(bytes) : 0;
}

void check_finite(const Score& score) {
  check(std::isfinite(score.nats), Hint{"the checkpoint is damaged, or its training diverged"},
        "the model's output is not finite");
}

Score score_set(Model& model, const ByteTable& bytes, const TokenSet& set, const ScoreOptions& options,
                const ProgressOutput& progress, const Interrupt* interrupt) {
  const Score score = Scoring(model, bytes, set, options, progress, interrupt).run();
  if (!options.may_diverge) check_finite(score);
  return score;
}

}  // namespace thimble
