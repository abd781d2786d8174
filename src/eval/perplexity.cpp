#include "eval/perplexity.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "eval/window_scorer.h"

namespace thimble {

namespace {

constexpr std::int64_t kUsualContext = 512;  // of llama-perplexity

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
  check(context >= 4, "chunks of {} tokens leave nothing to score: expected at least 4", context);
  const auto bos = tokenizer.adds_bos() ? tokenizer.special().bos : std::nullopt;
  if (bos) tokens.insert(tokens.begin(), *bos);
  const auto T = static_cast<std::size_t>(context);
  check(tokens.size() >= 2 * T, Hint{"a longer text, or a smaller --context"},
        "llama.cpp's perplexity needs two chunks of {} tokens, the text has {}", context, tokens.size());

  const ByteTable bytes(tokenizer, static_cast<TokenId>(model.config().vocab_size));
  Perplexity result{.score = {}, .chunks = static_cast<std::int64_t>(tokens.size() / T), .context = context};
  if (options.val_tokens > 0) {
    const std::int64_t each = context - 1 - context / 2;
    check(options.val_tokens >= each, Hint{"a smaller --context scores fewer"},
          "every chunk of {} tokens scores {}: there is none for {} tokens", context, each,
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
    if (interrupt) interrupt->throw_if_asked();
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(chunk * T);
    Window window{{begin, begin + context}, std::vector<std::int32_t>(T, -1), chunk + 1};
    for (std::size_t i = T / 2; i + 1 < T; ++i) window.target[i] = window.input[i + 1];
    if (bos) window.input[0] = *bos;
    scorer.add(std::move(window));
  }
  scorer.finish();
  check_finite(result.score);
  return result;
}

}  // namespace thimble
