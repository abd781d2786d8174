#include "eval/score.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/error.h"

namespace thimble {

namespace {

constexpr std::int64_t kTokensAtATime = 8192;

}  // namespace

double Score::bits_per_byte() const {
  return bytes > 0 ? nats / std::numbers::ln2 / static_cast<double>(bytes) : 0;
}

Score score_tokens(Model& model, const ByteTable& bytes, std::span<const std::int32_t> tokens,
                   std::int32_t bos, const ScoreOptions& options, const ProgressOutput& progress,
                   const Interrupt* interrupt) {
  const std::int64_t T = options.context > 0 ? options.context : model.config().context;
  check(T <= model.config().context, "context {} is more than the model's {}", T, model.config().context);
  auto count = static_cast<std::int64_t>(tokens.size()) - 1;
  check(count > 0, "there is nothing to score");
  if (options.val_tokens > 0) count = std::min(count, options.val_tokens);
  const std::int64_t rows = std::max<std::int64_t>(
      1, (options.tokens_at_a_time > 0 ? options.tokens_at_a_time : kTokensAtATime) / T);

  Score score;
  ProgressBar bar(progress, "scoring", "tokens", static_cast<std::uint64_t>(count));
  for (std::int64_t at = 0; at < count; at += rows * T) {
    if (interrupt) interrupt->throw_if_asked();
    // The last window may be short: it is filled up with bos, whose predictions are not scored.
    const std::int64_t scored = std::min(rows * T, count - at);
    const std::int64_t windows = (scored + T - 1) / T;
    std::vector<std::int32_t> input(static_cast<std::size_t>(windows * T), bos), target(input.size(), -1);
    std::vector<std::uint8_t> starts(input.size());
    for (std::int64_t i = 0; i < scored; ++i) {
      const auto from = static_cast<std::size_t>(at + i), to = static_cast<std::size_t>(i);
      input[to] = tokens[from];
      target[to] = tokens[from + 1];
      starts[to] = tokens[from] == bos;
      score.bytes += bytes.bytes(tokens[from], tokens[from + 1]);
    }
    for (float nats : model.score(grid_rows(model.config(), T, input, target, starts)).nats)
      score.nats += nats;
    score.tokens += scored;
    bar.advance(static_cast<std::uint64_t>(scored));
  }
  return score;
}

}  // namespace thimble
