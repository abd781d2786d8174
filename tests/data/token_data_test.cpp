#include "data/token_data.h"

#include <set>

#include "base/error.h"
#include "model/config_builder.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

TEST(Permuted, VisitsEveryWindowOnceAnEpochForAwkwardCounts) {
  for (std::uint64_t count : {1u, 2u, 3u, 4u, 5u, 16u, 17u, 997u, 4096u}) {
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < count; ++i) seen.insert(permuted(i, count, 42, 0));
    EXPECT_EQ(seen.size(), count);
    EXPECT_EQ(*seen.rbegin(), count - 1);
  }
}

TEST(Permuted, SeedsAndEpochsGiveOtherOrders) {
  int same_epoch = 0, same_seed = 0;
  for (std::uint64_t i = 0; i < 997; ++i) {
    same_epoch += permuted(i, 997, 1, 0) == permuted(i, 997, 1, 1);
    same_seed += permuted(i, 997, 1, 0) == permuted(i, 997, 2, 0);
  }
  EXPECT_LT(same_epoch, 10) << "one in 997 agrees by chance";
  EXPECT_LT(same_seed, 10);
}

ModelConfig small_config() {
  ConfigBuilder settings;
  settings.preset("quick");
  settings.set("context=4");
  return settings.resolve().model;
}

std::vector<std::int32_t> counting(int count) {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(i % 250 + 1);
  return tokens;
}

TEST(Loader, SequentialRowsFollowEachOtherAndTargetsAreOneAhead) {
  const auto tokens = counting(14);  // three windows of 4, and a rest that is not read
  Loader loader(tokens, 0, 4, ReadOrder::sequential, 1);
  EXPECT_EQ(loader.windows(), 3u);
  const Rows rows = loader.next(small_config(), 2);
  EXPECT_EQ(rows.token, (std::vector<std::int32_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(rows.target, (std::vector<std::int32_t>{2, 3, 4, 5, 6, 7, 8, 9}));
  const Rows wrapped = loader.next(small_config(), 2);
  EXPECT_EQ(wrapped.token, (std::vector<std::int32_t>{9, 10, 11, 12, 1, 2, 3, 4}));
  EXPECT_EQ(loader.position(), (Loader::Position{1, 1}));
}

TEST(Loader, SeekingGivesTheSameBatches) {
  const auto tokens = counting(1000);
  Loader straight(tokens, 0, 4, ReadOrder::shuffled, 7), jumped(tokens, 0, 4, ReadOrder::shuffled, 7);
  for (int i = 0; i < 100; ++i) straight.next(small_config(), 3);
  jumped.seek(straight.position());
  EXPECT_EQ(straight.next(small_config(), 5).token, jumped.next(small_config(), 5).token);
}

TEST(Loader, DocumentsAreIsolatedAtBos) {
  const std::vector<std::int32_t> tokens = {0, 5, 6, 0, 7};
  Loader loader(tokens, 0, 4, ReadOrder::sequential, 1);
  const Rows rows = loader.next(small_config(), 1);
  EXPECT_EQ(rows.first, (std::vector<std::int32_t>{0, 0, 0, 3}));
  EXPECT_EQ(rows.position, (std::vector<std::int32_t>{0, 1, 2, 0}));
}

TEST(Loader, ATextShorterThanARowIsRefused) {
  const auto tokens = counting(4);
  EXPECT_THROW(Loader(tokens, 0, 4, ReadOrder::sequential, 1), Error);
}

TEST(LoadText, SplitsBetweenCharactersAndClosesDocumentsWithBos) {
  TempFolder folder;
  folder.write("text.txt", "aaaaaaaaé");  // the cut at 90 % would fall into the last character
  const auto tokenizer = load_tokenizer("bytes");
  const TokenData data = load_text(folder / "text.txt", {}, 0.1, *tokenizer);
  EXPECT_EQ(data.train_bytes, 8u);
  EXPECT_EQ(data.val_bytes, 2u);
  EXPECT_EQ(data.train.front(), data.bos);
  EXPECT_EQ(data.train.back(), data.bos);
  EXPECT_EQ(tokenizer->decode(data.val), "é");
}

}  // namespace
}  // namespace thimble
