#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/number.h"
#include "base/rng.h"
#include "eval/eval_data.h"
#include "eval/score.h"
#include "model/rows.h"
#include "qa/same_logits.h"
#include "qa/speed.h"
#include "qa/subject.h"
#include "tokenizer/byte_table.h"
#include "tokenizer/chat_tokens.h"
#include "train/golden.h"

namespace thimble {

namespace {

constexpr std::int64_t kRowTokens = 48;
constexpr std::int64_t kSpeedTokens = 128, kSpeedRepeats = 3;

// bf16 and f32 round differently: so much worse is the same. (Seen: below 0.05 %.)
constexpr double kBpbTolerance = 0.002;

// The same for the mean of the golden output's nats, as a part of 1 + the nats. (Seen: 0.0013.)
constexpr double kGoldenTolerance = 0.005;

std::vector<std::int32_t> random_tokens(const ModelConfig& config) {
  Rng random(7);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(std::min(kRowTokens, config.context)));
  for (std::int32_t& token : tokens)
    token = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(config.vocab_size)));
  return tokens;
}

std::vector<float> scored(Model& model, const std::vector<std::int32_t>& tokens) {
  const auto T = static_cast<std::int64_t>(tokens.size());
  return model.score(grid_rows(model.config(), T, tokens), true).logits;
}

// One after the other through the cache, all logits.
std::vector<float> decoded(Model& model, const std::vector<std::int32_t>& tokens) {
  KvCache cache = model.make_cache(1);
  std::vector<float> logits;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const DecodeRow row{.token = tokens[i],
                        .previous = i > 0 ? tokens[i - 1] : -1,
                        .before_previous = i > 1 ? tokens[i - 2] : -1,
                        .position = static_cast<std::int32_t>(i)};
    const Tensor out = model.decode(decode_rows(model.config(), 1, std::span(&row, 1)), cache);
    logits.insert(logits.end(), out.row<float>(0), out.row<float>(0) + out.cols);
  }
  return logits;
}

std::optional<double> recorded(const Subject& subject, std::string_view key) {
  const std::string* text = subject.find_metadata(key);
  if (!text) return std::nullopt;
  const auto value = number_in<double>(*text);
  check(value && std::isfinite(*value), "metadata {} is '{}', expected a number", key, text->substr(0, 40));
  return value;
}

}  // namespace

GateOutcome logits_gate(Subject& subject) {
  const std::vector<float> logits = scored(subject.exact(), random_tokens(subject.file.config.model));
  const auto bad = std::ranges::count_if(logits, [](float logit) { return !std::isfinite(logit); });
  if (bad > 0) return failed("{} of {} logits are not finite", bad, logits.size());
  return passed("{} finite logits", logits.size());
}

GateOutcome decode_verdict(std::span<const float> at_once, std::span<const float> one_by_one, std::size_t V) {
  const LogitComparison same = compare_logits(at_once, one_by_one, V);
  if (!same.equal())
    return failed("at position {} decoding and scoring differ by {:.2g} of the largest logit", same.worst_row,
                  same.largest);
  return passed("{} positions, at most {:.2g} of the largest logit apart", at_once.size() / V, same.largest);
}

GateOutcome decode_gate(Subject& subject) {
  const std::vector<std::int32_t> tokens = random_tokens(subject.file.config.model);
  return decode_verdict(scored(subject.exact(), tokens), decoded(subject.exact(), tokens),
                        static_cast<std::size_t>(subject.file.config.model.vocab_size));
}

GateOutcome golden_gate(Subject& subject) {
  const std::string *ids = subject.find_metadata(kGoldenKey), *nats = subject.find_metadata(kGoldenNatsKey);
  if (!ids || !nats)
    return skipped("the file holds no golden output: checkpoints of `thimble train` and their f32 copies do");
  const Tokenizer* tokenizer = subject.tokenizer();
  if (!tokenizer) return failed("there is a golden output, but no tokenizer");
  const GoldenOutput golden = golden_from(*ids, *nats, tokenizer->vocab_size());
  if (golden.ids.empty() || std::cmp_greater(golden.ids.size(), subject.file.config.model.context))
    return failed("a golden output of {} tokens", golden.ids.size());
  std::vector<std::int32_t> row = {bos_of(*tokenizer)};
  row.insert(row.end(), golden.ids.begin(), golden.ids.end() - 1);
  // As it was trained, where this machine can: then not even rounding is left between then and now.
  const bool bf16 = subject.file.config.train.dtype == ComputeDType::bf16;
  const std::vector<float> logits = scored(bf16 ? subject.usual() : subject.exact(), row);
  const auto V = static_cast<std::size_t>(subject.file.config.model.vocab_size);
  GoldenOutput now;
  for (std::size_t i = 0; i < golden.ids.size(); ++i) {
    const auto here = std::span(logits).subspan(i * V, V);
    const auto choices = here.first(static_cast<std::size_t>(tokenizer->vocab_size()));
    if (stats_of(here).not_finite > 0)
      return failed("the logits of token {} of {} are not finite", i + 1, golden.ids.size());
    if (!is_as_likely(choices, golden.ids[i]))
      return failed("token {} of {} is {}, when it was saved the model said {}", i + 1, golden.ids.size(),
                    likeliest_id(choices), golden.ids[i]);
    now.ids.push_back(golden.ids[i]);
    now.nats += nats_of(here, golden.ids[i]);
  }
  const std::string figures = fmt::format("{} tokens of {:.4f} nats, {:.4f} when it was saved",
                                          now.ids.size(), now.mean_nats(), golden.mean_nats());
  const bool same =
      std::abs(now.mean_nats() - golden.mean_nats()) <= kGoldenTolerance * (1 + golden.mean_nats());
  return {same ? GateStatus::passed : GateStatus::failed, figures};
}

GateOutcome bpb_gate(Subject& subject) {
  if (subject.request.data.empty()) return skipped("no data: --data X");
  const Tokenizer* tokenizer = subject.tokenizer();
  if (!tokenizer) return failed("there is no tokenizer to read the data with");
  const TokenSet set = open_eval_set(subject.request.data, *tokenizer, subject.progress, subject.interrupt);
  const Config& config = subject.file.config;
  const ByteTable bytes(*tokenizer, static_cast<TokenId>(config.model.vocab_size));
  const auto most = recorded(subject, kValTokensKey);
  const ScoreOptions options{.val_tokens = most ? static_cast<std::int64_t>(*most) : config.train.val_tokens,
                             .isolate = config.model.isolate};
  const Score score = score_set(subject.usual(), bytes, set, options, subject.progress, subject.interrupt);
  if (score.bytes == 0) return failed("the {} tokens that were scored stand for no bytes", score.tokens);
  // Whoever names data gets its figure, also where there is nothing to hold it to.
  const double bits = score.bits_per_byte();
  const auto record = recorded(subject, kValBpbKey);
  if (!record) return skipped("{:.4f}, but the file records none to compare with", bits);
  const std::string* known = subject.find_metadata(kValSetKey);
  if (!known || *known != set.fingerprint())
    return skipped("{:.4f}, but the recorded {:.4f} is of other data", bits, *record);
  return {bits <= *record * (1 + kBpbTolerance) ? GateStatus::passed : GateStatus::failed,
          fmt::format("{:.4f}, recorded {:.4f}", bits, *record)};
}

GateOutcome throughput_gate(Subject& subject) {
  if (!subject.request.least_tokens_per_second) return skipped("not asked for: --min-tps N");
  const double least = *subject.request.least_tokens_per_second;
  const Speed speed = decode_speed(
      subject.usual(),
      {.tokens = std::min(kSpeedTokens, subject.file.config.model.context), .repeats = kSpeedRepeats},
      subject.progress, subject.interrupt);
  const std::string figures =
      fmt::format("{} {:.1f} tokens/s, asked for {}", speed.name, speed.mean(), least);
  return {speed.mean() >= least ? GateStatus::passed : GateStatus::failed, figures};
}

}  // namespace thimble
