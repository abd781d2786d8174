#include "eval/score.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "base/error.h"
#include "data/packing.h"

namespace thimble {

namespace {

constexpr std::int64_t kTokensAtATime = 8192;

// The set as rows of T, in the order in which they are scored.
class ScoredRows {
 public:
  ScoredRows(const TokenSet& set, std::int64_t T) : set_(set), T_(T) {
    if (set.marks().answers_only) packing_.emplace(set, T, LongDocuments::cut);
  }

  std::uint64_t count() const {
    return packing_ ? packing_->rows()
                    : (set_.size() + static_cast<std::uint64_t>(T_) - 1) / static_cast<std::uint64_t>(T_);
  }

  void append(std::uint64_t row, Grid& grid) const {
    if (!packing_) return set_.append_window(row * static_cast<std::uint64_t>(T_), T_, true, grid);
    const std::size_t end = grid.input.size() + static_cast<std::size_t>(T_);
    for (const Piece& piece : packing_->row(row)) {
      const std::size_t begin = grid.input.size();
      set_.append(piece.begin, piece.length, AfterLast::bos, grid);
      grid.doc_start[begin] = 1;  // also of the later pieces of a conversation that is longer than a row
    }
    grid.input.resize(end, set_.marks().bos);
    grid.target.resize(end, -1);
    grid.doc_start.resize(end, 1);
  }

 private:
  const TokenSet& set_;
  std::int64_t T_;
  std::optional<Packing> packing_;
};

// Leaves the first `most` targets.
void limit_targets(std::int64_t most, Grid& grid) {
  for (std::int32_t& target : grid.target)
    if (target >= 0 && most-- <= 0) target = -1;
}

}  // namespace

double Score::bits_per_byte() const {
  return bytes > 0 ? nats / std::numbers::ln2 / static_cast<double>(bytes) : 0;
}

Score score_set(Model& model, const ByteTable& bytes, const TokenSet& set, const ScoreOptions& options,
                const ProgressOutput& progress, const Interrupt* interrupt) {
  const std::int64_t T = options.context > 0 ? options.context : model.config().context;
  check(T <= model.config().context, "context {} is more than the model's {}", T, model.config().context);
  const std::int64_t at_a_time = options.tokens_at_a_time > 0 ? options.tokens_at_a_time : kTokensAtATime;
  const auto batch = static_cast<std::uint64_t>(std::max<std::int64_t>(1, at_a_time / T));
  const ScoredRows rows(set, T);

  Score score;
  ProgressBar bar(progress, "scoring", "rows", rows.count());
  for (std::uint64_t row = 0; row < rows.count(); row += batch) {
    if (options.val_tokens > 0 && score.tokens >= options.val_tokens) break;
    if (interrupt) interrupt->throw_if_asked();
    Grid grid;
    const std::uint64_t end = std::min(row + batch, rows.count());
    for (std::uint64_t i = row; i < end; ++i) rows.append(i, grid);
    if (options.val_tokens > 0) limit_targets(options.val_tokens - score.tokens, grid);
    for (std::size_t i = 0; i < grid.target.size(); ++i)
      if (grid.target[i] >= 0) score.bytes += bytes.bytes(grid.input[i], grid.target[i]);
    for (float nats : model.score(grid_rows(model.config(), T, grid.input, grid.target, grid.doc_start)).nats)
      score.nats += nats;
    score.tokens += grid.targets();
    bar.update(end);
  }
  check(score.tokens > 0, "there is nothing to score");
  return score;
}

}  // namespace thimble
