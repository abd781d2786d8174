#include "data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "shard_files.h"

namespace thimble::loader_test {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr std::int64_t kT = 4;
constexpr std::int32_t kBos = 0;

LoaderSettings settings_of(ReadOrder order, std::int64_t step_rows) {
  LoaderSettings settings;
  settings.rows.order = order;
  settings.rows.T = kT;
  settings.rows.step_rows = step_rows;
  settings.rows.seed = 7;
  return settings;
}

Tokens inputs_of(const Batch& batch) {
  Tokens tokens;
  for (const Rows& rows : batch.micro_batches)
    tokens.insert(tokens.end(), rows.token.begin(), rows.token.end());
  return tokens;
}
Tokens targets_of(const Batch& batch) {
  Tokens tokens;
  for (const Rows& rows : batch.micro_batches)
    tokens.insert(tokens.end(), rows.target.begin(), rows.target.end());
  return tokens;
}

// Short and long documents, so that cutting and packing are both exercised.
Tokens some_documents(std::uint64_t seed, int count) {
  Rng rng(seed);
  Tokens tokens;
  std::int32_t next = 10;
  for (int document = 0; document < count; ++document) {
    tokens.push_back(kBos);
    for (std::uint64_t i = 1 + rng.below(10); i > 0; --i) tokens.push_back(next++);
  }
  return tokens;
}

const std::vector<ReadOrder> kOrders = {ReadOrder::sequential, ReadOrder::shuffled, ReadOrder::shifted,
                                        ReadOrder::golf,       ReadOrder::golf_mlx, ReadOrder::packed};

TEST(BatchLoader, ReadsWindowsAndWraps) {
  const TokenSet set(counting(14), {.bos = kBos});  // three windows of 4 and a remainder
  BatchLoader loader(set, settings_of(ReadOrder::sequential, 2), config_of_context(kT));
  const Batch first = loader.next();
  EXPECT_EQ(inputs_of(first), counting(8));
  EXPECT_EQ(targets_of(first), counting(8, 2));
  EXPECT_EQ(first.targets, 8);
  EXPECT_EQ(first.tokens, 8);
  const Batch wrapped = loader.next();
  EXPECT_EQ(inputs_of(wrapped), (Tokens{9, 10, 11, 12, 1, 2, 3, 4}));
  EXPECT_EQ(loader.position(), (ReadPosition{1, 1}));
  EXPECT_EQ(loader.tokens_per_epoch(), 12u);
}

class EveryWindow : public testing::TestWithParam<std::uint64_t> {};

TEST_P(EveryWindow, IsVisitedOncePerEpoch) {
  const std::uint64_t windows = GetParam();
  Tokens tokens(windows * kT + 3, 1);
  for (std::uint64_t w = 0; w < windows; ++w) tokens[w * kT] = static_cast<std::int32_t>(w);
  const TokenSet set(tokens, {.bos = kTestVocabulary - 1});
  BatchLoader loader(set, settings_of(ReadOrder::shuffled, 1), config_of_context(kT));
  std::vector<Tokens> orders;
  for (int epoch = 0; epoch < 3; ++epoch) {
    Tokens order;
    for (std::uint64_t i = 0; i < windows; ++i) order.push_back(loader.next().micro_batches[0].token[0]);
    orders.push_back(order);
    std::ranges::sort(order);
    EXPECT_EQ(order, counting(windows, 0)) << "epoch " << epoch;
  }
  if (windows > 50) {
    EXPECT_NE(orders[0], orders[1]);
    EXPECT_NE(orders[0], counting(windows, 0));
  }
}

INSTANTIATE_TEST_SUITE_P(AwkwardCounts, EveryWindow,
                         testing::Values(1, 2, 3, 4, 5, 15, 16, 17, 64, 65, 996, 997, 998, 1994, 2991));

// Every row is a window of the ring, and an epoch reads all but a remainder shorter than a row,
// which is elsewhere in every epoch.
TEST(BatchLoader, ShiftedWindowsBeginElsewhereInEveryEpoch) {
  constexpr std::uint64_t kWindows = 9, kSize = kWindows * kT + 3;
  const TokenSet set(counting(kSize), {.bos = kBos});
  BatchLoader shifted(set, settings_of(ReadOrder::shifted, 1), config_of_context(kT));
  BatchLoader shuffled(set, settings_of(ReadOrder::shuffled, 1), config_of_context(kT));
  std::set<Tokens> left_out;
  for (int epoch = 0; epoch < 4; ++epoch) {
    Tokens read, rest = counting(kSize);
    for (std::uint64_t i = 0; i < kWindows; ++i) {
      const Batch batch = shifted.next(), unshifted = shuffled.next();
      if (epoch == 0) {
        EXPECT_EQ(inputs_of(batch), inputs_of(unshifted));
      }
      for (const std::int32_t token : inputs_of(batch)) read.push_back(token);
      for (std::size_t t = 0; t < kT; ++t)
        EXPECT_EQ(targets_of(batch)[t], inputs_of(batch)[t] % static_cast<std::int32_t>(kSize) + 1);
    }
    std::ranges::sort(read);
    std::erase_if(rest, [&](std::int32_t token) { return std::ranges::binary_search(read, token); });
    EXPECT_EQ(rest.size(), 3u);  // so no token was read twice
    left_out.insert(rest);
  }
  EXPECT_EQ(left_out.size(), 4u);
}

TEST(BatchLoader, SeekAndPrefetchGiveTheSameBatches) {
  const TokenSet set(some_documents(3, 101), {.bos = kBos});
  for (const ReadOrder order : kOrders) {
    LoaderSettings settings = settings_of(order, 6);
    settings.micro_batch = 4;
    BatchLoader straight(set, settings, config_of_context(kT));
    BatchLoader jumping(set, settings, config_of_context(kT));
    settings.prefetch = false;
    BatchLoader without_prefetch(set, settings, config_of_context(kT));
    jumping.next();  // fills the prefetch, which seek() must discard
    for (int step = 0; step < 100; ++step) {
      const ReadPosition position = straight.position();
      const Batch expected = straight.next();
      EXPECT_EQ(expected.begin, position);
      EXPECT_EQ(expected.end, straight.position());
      if (step % 7 == 0) jumping.seek(position);
      ASSERT_EQ(jumping.position(), position);
      const Batch batch = jumping.next();
      ASSERT_EQ(inputs_of(batch), inputs_of(expected)) << name_of(order) << ", step " << step;
      ASSERT_EQ(targets_of(batch), targets_of(expected));
      ASSERT_EQ(batch.warning, expected.warning);
      ASSERT_EQ(inputs_of(without_prefetch.next()), inputs_of(expected));
    }
  }
}

TEST(BatchLoader, PositionOutsideTheDataIsRefused) {
  const TokenSet set(counting(40), {.bos = kBos});
  BatchLoader loader(set, settings_of(ReadOrder::shuffled, 2), config_of_context(kT));
  EXPECT_THROW(loader.seek({0, 10}), Error);
  loader.seek({5, 9});
}

TEST(BatchLoader, DataDoesNotDependOnMicroBatchesOrRanks) {
  const TokenSet set(some_documents(5, 200), {.bos = kBos});
  for (const ReadOrder order : kOrders) {
    LoaderSettings settings = settings_of(order, 12);
    settings.rows.span_tokens = 3 * kT;
    settings.rows.sub_batch_tokens = kT;
    BatchLoader whole(set, settings, config_of_context(kT));
    settings.micro_batch = 5;
    BatchLoader cut(set, settings, config_of_context(kT));
    settings.ranks = 4;
    std::vector<std::unique_ptr<BatchLoader>> ranks;
    for (settings.rank = 0; settings.rank < 4; ++settings.rank)
      ranks.push_back(std::make_unique<BatchLoader>(set, settings, config_of_context(kT)));

    for (int step = 0; step < 20; ++step) {
      const Batch expected = whole.next(), pieces = cut.next();
      ASSERT_EQ(expected.micro_batches.size(), 1u);
      ASSERT_EQ(pieces.micro_batches.size(), 3u);
      ASSERT_EQ(inputs_of(pieces), inputs_of(expected));
      // Pairs of input and target, ignoring their order.
      std::multiset<std::pair<std::int32_t, std::int32_t>> all, shared;
      const auto add = [](const Batch& batch, auto& pairs) {
        const Tokens x = inputs_of(batch), y = targets_of(batch);
        for (std::size_t i = 0; i < x.size(); ++i) pairs.emplace(x[i], y[i]);
      };
      add(expected, all);
      for (auto& rank : ranks) {
        const Batch part = rank->next();
        ASSERT_EQ(part.targets, expected.targets) << "counted over the complete step";
        ASSERT_EQ(part.tokens, expected.tokens);
        add(part, shared);
      }
      ASSERT_EQ(shared, all) << name_of(order);
    }
  }
}

TEST(BatchLoader, WeightsOfAStepAddUpToOne) {
  const auto tokenizer = load_tokenizer("bytes:chat");
  Tokens tokens;
  for (int i = 0; i < 50; ++i) tokens.insert(tokens.end(), {0, 1, 10, 3, 2, 20, 21, 3});
  const TokenSet set(tokens, TokenMarks::of(*tokenizer, DataKind::chat, LossOn::assistant));
  LoaderSettings settings = settings_of(ReadOrder::packed, 5);
  settings.rows.T = 19;
  settings.micro_batch = 2;
  BatchLoader loader(set, settings, config_of_context(19));
  const Batch batch = loader.next();
  EXPECT_EQ(batch.targets, 5 * 2 * 3);  // two chats of three targets in each row
  EXPECT_EQ(batch.tokens, 5 * 16);
  EXPECT_NEAR(loader.padding(), 3.0 / 19, 1e-9);
  double weights = 0;
  for (const Rows& rows : batch.micro_batches) {
    weights = std::accumulate(rows.weight.begin(), rows.weight.end(), weights);
    EXPECT_EQ(rows.token_order.size(), rows.token.size()) << "token_order has an entry for every row";
    for (std::size_t n = 0; n < rows.target.size(); ++n) EXPECT_EQ(rows.weight[n] > 0, rows.target[n] >= 0);
  }
  EXPECT_NEAR(weights, 1, 1e-6);
}

TEST(BatchLoader, PackedRowsContainEveryDocumentOnceAndIsolated) {
  const Tokens tokens = some_documents(9, 400);
  const TokenSet set(tokens, {.bos = kBos});
  LoaderSettings settings = settings_of(ReadOrder::packed, 1);
  settings.rows.T = 8;  // some documents are longer
  BatchLoader loader(set, settings, config_of_context(8));

  // The token after each token; all contents are distinct.
  std::map<std::int32_t, std::int32_t> successor;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] != kBos) successor[tokens[i]] = i + 1 < tokens.size() ? tokens[i + 1] : kBos;

  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    std::multiset<std::int32_t> seen;
    std::size_t documents = 0;
    while (loader.position().epoch == epoch) {
      const Rows rows = loader.next().micro_batches.at(0);
      for (std::size_t n = 0; n < rows.token.size(); ++n) {
        const std::int32_t token = rows.token[n];
        if (rows.target[n] < 0) {
          EXPECT_EQ(token, kBos) << "padding";
          EXPECT_EQ(rows.position[n], 0);
        } else if (token == kBos) {
          ++documents;
          EXPECT_EQ(rows.position[n], 0);
          EXPECT_NE(rows.target[n], kBos);
        } else {
          seen.insert(token);
          EXPECT_EQ(rows.target[n], successor.at(token));
          // Isolation: the previous row contains the previous token of the same document or piece.
          if (rows.previous[n] >= 0) {
            const auto before = static_cast<std::size_t>(rows.previous[n]);
            EXPECT_EQ(before + 1, n);
            EXPECT_EQ(rows.target[before], token);
            EXPECT_EQ(rows.first[before], rows.first[n]);
          }
        }
      }
    }
    EXPECT_EQ(documents, 400u);
    EXPECT_EQ(seen.size(), successor.size());
    EXPECT_EQ(std::set<std::int32_t>(seen.begin(), seen.end()).size(), successor.size()) << "each once";
  }
  EXPECT_LT(loader.padding(), 0.05);
}

TEST(BatchLoader, PackedRowsAreShuffledEveryEpoch) {
  const TokenSet set(some_documents(9, 400), {.bos = kBos});
  BatchLoader loader(set, settings_of(ReadOrder::packed, 1), config_of_context(kT));
  std::vector<Tokens> epochs(2);
  while (loader.position().epoch < 2) {
    const std::uint64_t epoch = loader.position().epoch;
    const Tokens row = inputs_of(loader.next());
    epochs[epoch].insert(epochs[epoch].end(), row.begin(), row.end());
  }
  EXPECT_NE(epochs[0], epochs[1]);
  std::ranges::sort(epochs[0]);
  std::ranges::sort(epochs[1]);
  EXPECT_EQ(epochs[0], epochs[1]);
}

TEST(BatchLoader, DocumentsAreIsolatedAtBos) {
  const TokenSet set(Tokens{0, 5, 6, 0, 7}, {.bos = kBos});
  LoaderSettings settings = settings_of(ReadOrder::sequential, 1);
  const Rows rows = BatchLoader(set, settings, config_of_context(kT)).next().micro_batches.at(0);
  EXPECT_EQ(rows.first, (Tokens{0, 0, 0, 3}));
  EXPECT_EQ(rows.position, (Tokens{0, 1, 2, 0}));
  settings.isolate = false;
  const Rows crossing = BatchLoader(set, settings, config_of_context(kT)).next().micro_batches.at(0);
  EXPECT_EQ(crossing.position, (Tokens{0, 1, 2, 3}));
  settings.rows.order = ReadOrder::packed;
  EXPECT_THROW(BatchLoader(set, settings, config_of_context(kT)), Error);
}

TEST(BatchLoader, WarnsWhenAnEpochBegins) {
  const TokenSet set(counting(12), {.bos = kBos});  // three windows
  for (const ReadOrder order : {ReadOrder::sequential, ReadOrder::golf}) {
    BatchLoader loader(set, settings_of(order, 1), config_of_context(kT));
    std::vector<int> warned;
    for (int step = 0; step < 7; ++step) {
      const Batch batch = loader.next();
      if (!batch.warning.empty()) warned.push_back(step);
      if (step == 3 && order == ReadOrder::sequential) {
        EXPECT_EQ(batch.warning, "epoch 2 begins: the data has 12 tokens, 12 have been processed so far");
      }
    }
    // golf takes 5 tokens per step, so the third step wraps around, and then every second one.
    EXPECT_EQ(warned, order == ReadOrder::sequential ? (std::vector<int>{3, 6}) : (std::vector<int>{2, 4}));
  }
}

TEST(BatchLoader, NextRethrowsErrorsOfTheThread) {
  Tokens tokens = counting(12);
  tokens[9] = 60000;  // outside of the vocabulary, in the third window
  const TokenSet set(tokens, {.bos = kBos});
  BatchLoader loader(set, settings_of(ReadOrder::sequential, 1), config_of_context(kT));
  loader.next();
  loader.next();  // the targets of this window are valid, too
  EXPECT_THROW(loader.next(), Error);
  EXPECT_THROW(loader.next(), Error) << "the error persists until seek()";
  EXPECT_EQ(loader.position(), (ReadPosition{0, 2}));
  loader.seek({0, 0});
  EXPECT_EQ(inputs_of(loader.next()), counting(4));
}

TEST(BatchLoader, AStepWithoutTargetsIsRefused) {
  const auto tokenizer = load_tokenizer("bytes:chat");
  Tokens tokens = {0, 1};
  tokens.insert(tokens.end(), 50, 10);
  const TokenSet set(tokens, TokenMarks::of(*tokenizer, DataKind::chat, LossOn::assistant));
  EXPECT_THROW(BatchLoader(set, settings_of(ReadOrder::sequential, 2), config_of_context(kT)).next(), Error);
}

TEST(BatchLoader, ATextShorterThanARowIsRefused) {
  const TokenSet set(counting(3), {.bos = kBos});
  EXPECT_THROW(BatchLoader(set, settings_of(ReadOrder::shuffled, 1), config_of_context(kT)), Error);
  EXPECT_NO_THROW(BatchLoader(set, settings_of(ReadOrder::packed, 1), config_of_context(kT)).next());
}

TEST(BatchLoader, CanBeDestroyedWhilePrefetching) {
  const TokenSet set(some_documents(2, 1000), {.bos = kBos});
  for (int i = 0; i < 50; ++i) {
    BatchLoader loader(set, settings_of(ReadOrder::shuffled, 100), config_of_context(kT));
    for (int step = 0; step < i % 3; ++step) loader.next();
  }
}

}  // namespace
}  // namespace thimble::loader_test
