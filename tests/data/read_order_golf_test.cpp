// Compares the golf read orders with slow reimplementations of the published scripts' loaders.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "data/loader.h"
#include "shard_files.h"

namespace thimble::read_order_golf_test {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr int kSteps = 100;

// Sorted shards, read one token at a time, wrapping around to the first shard.
class SlowStream {
 public:
  explicit SlowStream(std::vector<Tokens> shards) : shards_(std::move(shards)) {}

  Tokens take(std::int64_t count) {
    Tokens taken;
    while (static_cast<std::int64_t>(taken.size()) < count) {
      if (at_ == shards_[shard_].size()) {
        shard_ = (shard_ + 1) % shards_.size();
        at_ = 0;
        continue;
      }
      taken.push_back(shards_[shard_][at_++]);
    }
    return taken;
  }

 private:
  std::vector<Tokens> shards_;
  std::size_t shard_ = 0, at_ = 0;
};

struct Pairs {
  Tokens x, y;
  bool operator==(const Pairs&) const = default;
  void add(const Tokens& span) {
    x.insert(x.end(), span.begin(), span.end() - 1);
    y.insert(y.end(), span.begin() + 1, span.end());
  }
};

// train_gpt.py: 8 / world micro-steps of `world` spans of n + 1 contiguous tokens, one per rank.
Pairs slow_golf_step(SlowStream& stream, std::int64_t span, int spans, int world, int rank) {
  Pairs pairs;
  for (int micro = 0; micro < spans / world; ++micro) {
    const Tokens chunk = stream.take(world * (span + 1));
    const auto begin = chunk.begin() + rank * (span + 1);
    pairs.add(Tokens(begin, begin + span + 1));
  }
  return pairs;
}

// train_gpt_mlx.py: 8 micro-batches, cut into sub-batches of complete rows of at most max_tokens.
Pairs slow_mlx_step(SlowStream& stream, std::int64_t T, std::int64_t micro_tokens, int micros,
                    std::int64_t max_tokens) {
  Pairs pairs;
  for (int micro = 0; micro < micros; ++micro) {
    std::int64_t remaining = micro_tokens / T * T;
    const std::int64_t most = std::max(max_tokens / T * T, T);
    while (remaining > 0) {
      const std::int64_t chunk = std::min(remaining, most);
      pairs.add(stream.take(chunk + 1));
      remaining -= chunk;
    }
  }
  return pairs;
}

Pairs pairs_of(const Batch& batch) {
  Pairs pairs;
  for (const Rows& rows : batch.micro_batches) {
    pairs.x.insert(pairs.x.end(), rows.token.begin(), rows.token.end());
    pairs.y.insert(pairs.y.end(), rows.target.begin(), rows.target.end());
  }
  return pairs;
}

// Shards of odd sizes that together are smaller than two steps, so that 100 steps wrap many times.
class GolfOrder : public testing::Test {
 protected:
  static constexpr std::int64_t kT = 8;

  GolfOrder()
      : tokens_(counting(436)),
        set_(TokenSet::open(write_shards(folder_, tokens_, {7, 113, 1, 64, 251}), {.bos = 9})) {}

  SlowStream slow() const {
    std::vector<Tokens> shards;
    auto at = tokens_.begin();
    for (const int size : {7, 113, 1, 64, 251}) shards.emplace_back(at, at + size), at += size;
    return SlowStream(shards);
  }
  LoaderSettings settings(ReadOrder order, std::int64_t rows, std::int64_t span) const {
    LoaderSettings settings;
    settings.rows.order = order;
    settings.rows.T = kT;
    settings.rows.step_rows = rows;
    settings.rows.span_tokens = span;
    settings.micro_batch = 3;  // not a divisor of any row count here
    return settings;
  }

  TempFolder folder_;
  Tokens tokens_;
  TokenSet set_;
};

TEST_F(GolfOrder, FirstHundredBatchesMatchTrainGpt) {
  for (const int world : {1, 2, 4, 8}) {
    for (int rank = 0; rank < world; ++rank) {
      SlowStream stream = slow();
      LoaderSettings ours = settings(ReadOrder::golf, 32, 4 * kT);
      ours.rank = rank;
      ours.ranks = world;
      BatchLoader loader(set_, ours, config_of_context(kT));
      for (int step = 0; step < kSteps; ++step) {
        const Batch batch = loader.next();
        ASSERT_EQ(pairs_of(batch), slow_golf_step(stream, 4 * kT, 8, world, rank))
            << "step " << step << ", rank " << rank << " of " << world;
        ASSERT_EQ(batch.targets, 32 * kT);
      }
    }
  }
}

TEST_F(GolfOrder, FirstHundredBatchesMatchTrainGptMlx) {
  struct Case {
    std::int64_t micro_rows, max_tokens;
  };
  // Sub-batch sizes: a divisor of the micro-batch, no divisor, below a row, above the micro-batch.
  for (const Case c : {Case{4, 2 * kT}, Case{5, 2 * kT + 3}, Case{3, kT - 1}, Case{6, 8192}}) {
    SlowStream stream = slow();
    LoaderSettings ours = settings(ReadOrder::golf_mlx, 8 * c.micro_rows, c.micro_rows * kT);
    ours.rows.sub_batch_tokens = c.max_tokens;
    BatchLoader loader(set_, ours, config_of_context(kT));
    for (int step = 0; step < kSteps; ++step)
      ASSERT_EQ(pairs_of(loader.next()), slow_mlx_step(stream, kT, c.micro_rows * kT, 8, c.max_tokens))
          << "step " << step << " of " << c.micro_rows << ", " << c.max_tokens;
  }
}

TEST_F(GolfOrder, BatchesDoNotDependOnTheNumberOfRanks) {
  const auto rows_of = [&](int world) {
    std::vector<Pairs> rows;
    for (int rank = 0; rank < world; ++rank) {
      LoaderSettings ours = settings(ReadOrder::golf, 32, 4 * kT);
      ours.rank = rank;
      ours.ranks = world;
      BatchLoader loader(set_, ours, config_of_context(kT));
      for (int step = 0; step < 3; ++step) {
        const Pairs pairs = pairs_of(loader.next());
        for (std::size_t at = 0; at < pairs.x.size(); at += kT)
          rows.push_back({Tokens(pairs.x.begin() + static_cast<std::ptrdiff_t>(at),
                                 pairs.x.begin() + static_cast<std::ptrdiff_t>(at) + kT),
                          {step}});
      }
    }
    std::ranges::sort(rows, {}, [](const Pairs& row) { return std::pair(row.y, row.x); });
    return rows;
  };
  EXPECT_EQ(rows_of(1), rows_of(8));
  EXPECT_EQ(rows_of(1), rows_of(2));
}

TEST_F(GolfOrder, RowsCrossDocumentsUnlessIsolated) {
  LoaderSettings ours = settings(ReadOrder::golf, 2, 0);
  ours.micro_batch = 0;
  const Rows crossing = BatchLoader(set_, ours, config_of_context(kT)).next().micro_batches.at(0);
  ASSERT_EQ(crossing.token[8], 9);
  ASSERT_EQ(crossing.position[8], 0) << "every row starts at position 0";
  LoaderSettings wide = ours;
  wide.rows.T = 16;
  wide.rows.step_rows = 1;
  EXPECT_EQ(BatchLoader(set_, wide, config_of_context(16)).next().micro_batches.at(0).position[8], 8);
  wide.isolate = true;
  EXPECT_EQ(BatchLoader(set_, wide, config_of_context(16)).next().micro_batches.at(0).position[8], 0);
}

TEST_F(GolfOrder, InvalidSpansAreRefused) {
  EXPECT_THROW(BatchLoader(set_, settings(ReadOrder::golf, 32, 4 * kT + 1), config_of_context(kT)), Error);
  EXPECT_THROW(BatchLoader(set_, settings(ReadOrder::golf, 32, 5 * kT), config_of_context(kT)), Error);
  LoaderSettings ours = settings(ReadOrder::golf, 32, 4 * kT);
  ours.ranks = 3;
  EXPECT_THROW(BatchLoader(set_, ours, config_of_context(kT)), Error);
}

}  // namespace
}  // namespace thimble::read_order_golf_test
