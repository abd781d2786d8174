#include "train/golden.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/joined.h"
#include "base/number.h"
#include "model/rows.h"
#include "tokenizer/chat_layout.h"

namespace thimble {

namespace {

// Scores a row of fixed length again and again instead of decoding: that runs on a card too, and takes one program.
GoldenOutput greedy(Model& model, TokenId bos, TokenId allowed) {
  const std::int64_t T = std::min(kGoldenTokens, model.config().context);
  const auto V = static_cast<std::size_t>(model.config().vocab_size);
  std::vector<std::int32_t> row(static_cast<std::size_t>(T), bos);
  GoldenOutput golden;
  for (std::size_t at = 0; at < row.size(); ++at) {
    const std::vector<float> logits = model.score(grid_rows(model.config(), T, row), true).logits;
    const auto here = std::span(logits).subspan(at * V, V);
    if (!std::ranges::all_of(here, [](float logit) { return std::isfinite(logit); })) return {};
    const auto choices = here.first(static_cast<std::size_t>(allowed));
    const auto id = static_cast<TokenId>(std::ranges::max_element(choices) - choices.begin());
    golden.ids.push_back(id);
    golden.nats += nats_of(here, id);
    if (at + 1 < row.size()) row[at + 1] = id;
  }
  return golden;
}

}  // namespace

double nats_of(std::span<const float> logits, TokenId id) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - largest);
  return largest + std::log(sum) - double{logits[static_cast<std::size_t>(id)]};
}

GoldenOutput golden_output(const Trained& trained, const Tokenizer& tokenizer) {
  GoldenOutput golden;
  {
    const AverageInPlace average(trained.averaging, trained.model.weights());
    if (trained.averaging.available()) trained.model.weights_changed();
    golden = greedy(trained.model, bos_of(tokenizer), tokenizer.vocab_size());
  }
  if (trained.averaging.available()) trained.model.weights_changed();
  return golden;
}

void append_golden(const GoldenOutput& golden, CheckpointRecord& record) {
  if (golden.ids.empty()) return;
  record.emplace_back(kGoldenKey, joined(golden.ids, " "));
  record.emplace_back(kGoldenNatsKey, fmt::format("{}", golden.nats));
}

GoldenOutput golden_from(std::string_view ids, std::string_view nats, TokenId vocab_size) {
  GoldenOutput golden;
  for (std::size_t begin = 0; begin < ids.size();) {
    const std::size_t end = std::min(ids.find(' ', begin), ids.size());
    const auto id = number_in<TokenId>(ids.substr(begin, end - begin));
    check(id && *id >= 0 && *id < vocab_size && golden.ids.size() < static_cast<std::size_t>(kGoldenTokens),
          "the golden output holds '{}', expected at most {} ids below {}",
          ids.substr(begin, std::min<std::size_t>(end - begin, 40)), kGoldenTokens, vocab_size);
    golden.ids.push_back(*id);
    begin = end + 1;
  }
  const auto sum = number_in<double>(nats);
  check(sum && std::isfinite(*sum) && *sum >= 0, "the golden output has '{}' nats, expected a number",
        nats.substr(0, 40));
  golden.nats = *sum;
  return golden;
}

}  // namespace thimble
