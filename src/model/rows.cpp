#include "model/rows.h"

#include <algorithm>

#include "base/error.h"
#include "ops/embedding.h"

namespace thimble {

namespace {

void check_token(const ModelConfig& config, std::int32_t token, std::size_t row, std::string_view what) {
  check(token >= 0 && token < config.vocab_size, Hint{"use the tokenizer that the model was trained with"},
        "{} {} at row {} is outside the vocabulary of {} tokens", what, token, row, config.vocab_size);
}

std::int32_t bucket_of(const ModelConfig& config, std::int32_t token, std::int32_t previous) {
  if (config.bigram_buckets == 0) return 0;
  return bigram_bucket(token, previous, previous < 0, static_cast<std::int32_t>(config.bigram_buckets));
}

void sort_indices(const ModelConfig& config, Rows& rows) {
  const auto sorted = [](const std::vector<std::int32_t>& index, std::int64_t buckets) {
    std::vector<std::int32_t> order(index.size());
    sort_rows(index, buckets, order);
    return order;
  };
  rows.token_order = sorted(rows.token, config.vocab_size);
  if (config.bigram_buckets > 0) rows.bucket_order = sorted(rows.bucket, config.bigram_buckets);
  if (config.position == PositionKind::learned)
    rows.position_order = sorted(rows.embedded_position, config.context);
}

void set_targets(const ModelConfig& config, std::span<const std::int32_t> target, Rows& rows) {
  const std::size_t N = rows.token.size();
  rows.target.assign(N, -1);
  rows.weight.assign(N, 0.0f);
  if (target.empty()) return;
  check(target.size() == N, "found {} targets for {} rows", target.size(), N);
  const auto scored = std::ranges::count_if(target, [](std::int32_t t) { return t >= 0; });
  for (std::size_t n = 0; n < N; ++n) {
    if (target[n] < 0) continue;
    check_token(config, target[n], n, "target");
    rows.target[n] = target[n];
    rows.weight[n] = 1.0f / static_cast<float>(scored);
  }
}

}  // namespace

Rows grid_rows(const ModelConfig& config, std::int64_t T, std::span<const std::int32_t> input,
               std::span<const std::int32_t> target, std::span<const std::uint8_t> doc_start) {
  const auto N = static_cast<std::int64_t>(input.size());
  check(T > 0 && N > 0 && N % T == 0, "{} tokens cannot be divided into rows of {} tokens", N, T);
  check(T <= config.context, Hint{"cut the text into shorter rows"},
        "rows of {} tokens exceed the model's context of {}", T, config.context);
  check(doc_start.empty() || doc_start.size() == input.size(), "found {} document starts for {} rows",
        doc_start.size(), N);
  Rows rows;
  std::int32_t start = 0;
  for (std::size_t n = 0; n < input.size(); ++n) {
    const auto row = static_cast<std::int32_t>(n);
    check_token(config, input[n], n, "token");
    const bool starts = row % T == 0 || (!doc_start.empty() && doc_start[n] != 0);
    if (starts) start = row;
    rows.token.push_back(input[n]);
    rows.bucket.push_back(bucket_of(config, input[n], starts ? -1 : input[n - 1]));
    rows.previous.push_back(starts ? -1 : row - 1);
    rows.first.push_back(start);
    rows.position.push_back(row - start);
  }
  rows.embedded_position = rows.position;
  set_targets(config, target, rows);
  sort_indices(config, rows);
  return rows;
}

Rows decode_rows(const ModelConfig& config, std::int64_t slots, std::span<const DecodeRow> decode) {
  Rows rows;
  const auto N = static_cast<std::int32_t>(decode.size());
  for (std::int32_t n = 0; n < N; ++n) {
    const DecodeRow& row = decode[static_cast<std::size_t>(n)];
    check_token(config, row.token, static_cast<std::size_t>(n), "token");
    check(row.slot >= 0 && row.slot < slots, "slot {} is out of range: there are {} slots", row.slot, slots);
    check(row.position >= 0 && row.position < config.context, "position {} is outside the context of {}",
          row.position, config.context);
    check((row.previous < 0) == (row.position == 0),
          "position {} has previous token {}: expected -1 at position 0 only", row.position, row.previous);
    rows.token.push_back(row.token);
    rows.bucket.push_back(bucket_of(config, row.token, row.previous));
    rows.embedded_position.push_back(row.position);
    rows.position.push_back(row.position);
    rows.slot.push_back(row.slot);
    rows.previous.push_back(config.smear_gate && row.previous >= 0 ? N + n : -1);
    if (row.wants_logits) rows.gather.push_back(n);
  }
  if (!config.smear_gate) return rows;
  // The smear gate reads the previous token's embedding, which is computed again from its id.
  for (const DecodeRow& row : decode) {
    const std::int32_t previous = std::max(row.previous, 0);
    check_token(config, previous, rows.token.size(), "previous token");
    rows.token.push_back(previous);
    rows.bucket.push_back(bucket_of(config, previous, row.before_previous));
    rows.embedded_position.push_back(std::max(row.position - 1, 0));
  }
  return rows;
}

Rows padded_rows(Rows rows, std::int64_t count, std::int64_t gathered) {
  const std::int64_t N = rows.count();
  check(count >= N && gathered >= std::ssize(rows.gather), "[model] cannot pad {} rows to {}", N, count);
  // With a smear gate there are two halves, and both are padded; the second then starts at `count`.
  const auto fill = [&](std::vector<std::int32_t>& each) {
    const bool halves = std::ssize(each) == 2 * N;
    if (halves) each.resize(static_cast<std::size_t>(N + count));
    each.insert(each.begin() + N, static_cast<std::size_t>(count - N), 0);
  };
  fill(rows.token);
  fill(rows.bucket);
  fill(rows.embedded_position);
  for (std::int32_t& previous : rows.previous)
    if (previous >= 0) previous += static_cast<std::int32_t>(count - N);
  rows.previous.resize(static_cast<std::size_t>(count), -1);
  rows.position.resize(static_cast<std::size_t>(count), 0);
  rows.slot.resize(static_cast<std::size_t>(count), -1);
  rows.gather.resize(static_cast<std::size_t>(gathered), 0);
  return rows;
}

}  // namespace thimble
