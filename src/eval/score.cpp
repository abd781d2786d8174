#include "eval/score.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "base/error.h"

namespace thimble {

namespace {

// The boundaries of the parts that are scored separately: the start of each part, and the end of
// the last one.
std::vector<std::uint64_t> part_borders(const TokenSet& set, std::uint64_t T, bool isolate) {
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

// Keeps only the first `most` targets; returns how many are kept.
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
        borders_(part_borders(set, static_cast<std::uint64_t>(T_), options.isolate)),
        rank_(static_cast<std::uint64_t>(options.rank)),
        ranks_(static_cast<std::uint64_t>(options.ranks)),
        interrupt_(interrupt),
        on_scored_(options.on_scored),
        on_target_(options.on_target),
        bar_(progress, "scoring", "tokens",
             std::min(borders_.back(), limited_ ? static_cast<std::uint64_t>(left_) : borders_.back())),
        scorer_(model, T_, options.tokens_at_a_time,
                [this](const Window& window, std::span<const float> nats) { count(window, nats); }) {
    check(stride_ <= T_, "stride {} exceeds the context of {}: tokens between windows would not be scored",
          stride_, T_);
  }

  Score run() {
    for (std::size_t i = 0; i + 1 < borders_.size() && left_ > 0; ++i)
      read(borders_[i], borders_[i + 1] - borders_[i]);
    scorer_.finish();
    check(score_.tokens > 0 || ranks_ > 1, "the data contains no tokens to score");
    return score_;
  }

 private:
  void read(std::uint64_t begin, std::uint64_t length) {
    if (length == 0) return;
    const SlidingWindows windows(length, static_cast<std::uint64_t>(T_), static_cast<std::uint64_t>(stride_));
    for (std::uint64_t i = 0; i < windows.count() && left_ > 0; ++i) {
      if (interrupt_) interrupt_->throw_if_interrupted();
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
      const std::uint64_t bytes = bytes_.bytes(window.input[i], window.target[i]);
      score_.nats += nats[i];
      score_.bytes += bytes;
      score_.characters +=
          bytes_.is_text(window.target[i]) ? bytes_.characters(window.input[i], window.target[i]) : 1;
      ++score_.tokens;
      if (on_target_) on_target_(window.tag - nats.size() + i, nats[i], bytes);
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
  std::function<void(std::uint64_t, double, std::uint64_t)> on_target_;
  Score score_;
  ProgressBar bar_;
  WindowScorer scorer_;
};

}  // namespace

double Score::bits_per_byte() const {
  return bytes > 0 ? nats / std::numbers::ln2 / static_cast<double>(bytes) : 0;
}

double Score::nats_per_character() const {
  return characters > 0 ? nats / static_cast<double>(characters) : 0;
}

void check_finite(const Score& score) {
  check(std::isfinite(score.nats),
        Hint{"use another checkpoint: this one is damaged or its training diverged"},
        "the model's output is not finite");
}

Score score_set(Model& model, const ByteTable& bytes, const TokenSet& set, const ScoreOptions& options,
                const ProgressOutput& progress, const Interrupt* interrupt) {
  const Score score = Scoring(model, bytes, set, options, progress, interrupt).run();
  if (!options.may_diverge) check_finite(score);
  return score;
}

namespace {

constexpr std::uint64_t kBlockBytes = 128;

void add_to(Score& sum, const Score& part) {
  sum.nats += part.nats;
  sum.tokens += part.tokens;
  sum.bytes += part.bytes;
}

}  // namespace

ScoreParts::ScoreParts(const TokenSet& set) : borders_(set.document_starts()) {
  parts_.resize(are_documents() ? borders_.size() : 1);
}

void ScoreParts::add(std::uint64_t input, double nats, std::uint64_t bytes) {
  if (are_documents()) {
    while (at_ + 1 < borders_.size() && borders_[at_ + 1] <= input) ++at_;
  } else {
    at_ = static_cast<std::size_t>(bytes_ / kBlockBytes);
    if (at_ >= parts_.size()) parts_.resize(at_ + 1);
  }
  bytes_ += bytes;
  add_to(parts_[at_], {.nats = nats, .tokens = 1, .bytes = bytes});
}

std::vector<Score> ScoreParts::scores() const {
  if (are_documents()) return parts_;
  const std::size_t each = (parts_.size() + kMostBlocks - 1) / kMostBlocks;
  std::vector<Score> blocks((parts_.size() + each - 1) / each);
  for (std::size_t i = 0; i < parts_.size(); ++i) add_to(blocks[i / each], parts_[i]);
  return blocks;
}

namespace {

constexpr std::int64_t kMostLogits = std::int64_t{1} << 28;  // per batch: 1 GiB of f32
constexpr std::size_t kShortestRow = 64;

}  // namespace

WindowScorer::WindowScorer(Model& model, std::int64_t T, std::int64_t tokens_at_a_time, Sink sink)
    : model_(model), T_(static_cast<std::size_t>(T)), sink_(std::move(sink)) {
  check(T > 0 && T <= model.config().context, "context {} exceeds the model's context of {}", T,
        model.config().context);
  std::int64_t tokens = tokens_at_a_time;
  if (tokens == 0) tokens = model.max_score_rows();
  if (tokens_at_a_time == 0 && model.device() == Device::cpu)  // for a GPU, max_score_rows() includes logits
    tokens = std::min(tokens, std::max<std::int64_t>(1, kMostLogits / model.config().vocab_size));
  most_rows_ = static_cast<std::size_t>(std::max<std::int64_t>(1, tokens / T));
  shared_ = static_cast<std::size_t>(std::min(T, tokens));
}

void WindowScorer::add(Window window) {
  const std::size_t count = window.input.size();
  check(count > 0 && count <= T_ && window.target.size() == count,
        "[score] a window of {} tokens and {} targets does not fit rows of {}", count, window.target.size(),
        T_);
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
  // The shortest power of two that fits the longest row. Powers of two, because every length needs
  // a separate program.
  const std::size_t T = std::min(T_, std::max(kShortestRow, std::bit_ceil(std::ranges::max(used_))));
  // Every unused position is a separate document that is not scored.
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
  if (model_.device() == Device::cpu) collect();  // already computed
}

void WindowScorer::collect() {
  if (computing_.empty()) return;
  const std::vector<float> nats = model_.queued_nats();
  for (const Waiting& waiting : std::exchange(computing_, {}))
    sink_(waiting.window, std::span(nats).subspan(waiting.row * computing_length_ + waiting.begin,
                                                  waiting.window.input.size()));
}

namespace {

constexpr std::int64_t kUsualContext = 512;  // llama-perplexity's default

}  // namespace

double Perplexity::value() const {
  return std::exp(score.loss());
}

double Perplexity::standard_error() const {
  const auto n = static_cast<double>(score.tokens);
  const double variance = squared_nats / n - score.loss() * score.loss();
  return variance > 0 && n > 1 ? value() * std::sqrt(variance / (n - 1)) : 0;
}

Perplexity perplexity(Model& model, const Tokenizer& tokenizer, std::vector<std::int32_t> tokens,
                      const PerplexityOptions& options, const ProgressOutput& progress,
                      const Interrupt* interrupt) {
  const std::int64_t context =
      options.context > 0 ? options.context : std::min(kUsualContext, model.config().context);
  check(context >= 4, "chunks of {} tokens are too short to score, expected at least 4", context);
  const auto bos = tokenizer.adds_bos() ? tokenizer.special().bos : std::nullopt;
  if (bos) tokens.insert(tokens.begin(), *bos);
  const auto T = static_cast<std::size_t>(context);
  check(tokens.size() >= 2 * T, Hint{"use a longer text or a smaller --context"},
        "llama.cpp's perplexity needs two chunks of {} tokens, but the text has {}", context, tokens.size());

  const ByteTable bytes(tokenizer, static_cast<TokenId>(model.config().vocab_size));
  Perplexity result{.score = {}, .chunks = static_cast<std::int64_t>(tokens.size() / T), .context = context};
  if (options.val_tokens > 0) {
    const std::int64_t each = context - 1 - context / 2;
    check(options.val_tokens >= each, Hint{"use a smaller --context or a larger --val-tokens"},
          "each chunk of {} tokens scores {} tokens, more than the limit of {}", context, each,
          options.val_tokens);
    result.chunks = std::min(result.chunks, options.val_tokens / each);
  }
  ProgressBar bar(progress, "scoring", "chunks", static_cast<std::uint64_t>(result.chunks));
  WindowScorer scorer(model, context, options.tokens_at_a_time,
                      [&](const Window& window, std::span<const float> nats) {
                        for (std::size_t i = 0; i < nats.size(); ++i) {
                          if (window.target[i] < 0) continue;
                          result.score.nats += nats[i];
                          result.squared_nats += static_cast<double>(nats[i]) * nats[i];
                          result.score.bytes += bytes.bytes(window.input[i], window.target[i]);
                          ++result.score.tokens;
                        }
                        bar.update(window.tag, {fmt::format("ppl {:.4f}", result.value())});
                      });
  for (std::size_t chunk = 0; std::cmp_less(chunk, result.chunks); ++chunk) {
    if (interrupt) interrupt->throw_if_interrupted();
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(chunk * T);
    Window window{{begin, begin + context}, std::vector<std::int32_t>(T, -1), chunk + 1};
    for (std::size_t i = T / 2; i + 1 < T; ++i) window.target[i] = window.input[i + 1];
    if (bos) window.input[0] = tokens[0];
    scorer.add(std::move(window));
  }
  scorer.finish();
  check_finite(result.score);
  return result;
}

}  // namespace thimble
