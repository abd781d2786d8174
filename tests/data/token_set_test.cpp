#include "data/token_set.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "shard_files.h"

namespace thimble::token_set_test {
namespace {

using Tokens = std::vector<std::int32_t>;

// <bos> 0, <user> 1, <assistant> 2, <end_turn> 3, <system> 4
TokenMarks chat_marks() {
  return TokenMarks::of(*load_tokenizer("bytes:chat"), DataKind::chat, LossOn::assistant);
}

TEST(TokenSet, ReadsAcrossShardBoundaries) {
  TempFolder folder;
  const auto tokens = counting(1000);
  const TokenSet set = TokenSet::open(write_shards(folder, tokens, {0, 1, 0, 0, 996, 3, 0}), {});
  ASSERT_EQ(set.size(), 1000u);
  for (std::size_t begin = 0; begin <= 1000; begin += 1) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, 1000 - begin}) {
      if (begin + count > 1000) continue;
      Tokens part(count);
      set.copy(begin, part);
      ASSERT_EQ(part, counting(count, static_cast<std::int32_t>(begin) + 1)) << begin;
    }
  }
  EXPECT_EQ(set.at(999), 1000);
  EXPECT_THROW(set.at(1000), Error);
  EXPECT_THROW(TokenSet::open(write_shards(folder, tokens, {0}, "val"), {}), Error);
}

TEST(TokenSet, LastTargetIsBosOrTheFirstToken) {
  const TokenSet set(Tokens{0, 5, 6, 0, 7}, {});
  Grid grid;
  set.append(2, 3, AfterLast::bos, grid);
  EXPECT_EQ(grid.input, (Tokens{6, 0, 7}));
  EXPECT_EQ(grid.target, (Tokens{0, 7, 0}));
  EXPECT_EQ(grid.doc_start, (std::vector<std::uint8_t>{0, 1, 0}));
  EXPECT_THROW(set.append(2, 4, AfterLast::bos, grid), Error);

  Grid ring;
  set.append(4, 12, AfterLast::first_token, ring);
  EXPECT_EQ(ring.input, (Tokens{7, 0, 5, 6, 0, 7, 0, 5, 6, 0, 7, 0}));
  EXPECT_EQ(ring.target, (Tokens{0, 5, 6, 0, 7, 0, 5, 6, 0, 7, 0, 5}));
  EXPECT_EQ(ring.tokens, 12);
}

TEST(TokenSet, WindowsArePaddedWithUnscoredTokens) {
  const TokenSet set(Tokens{0, 5, 6, 0, 7}, {});
  Grid grid;
  set.append_window(3, 4, true, grid);
  EXPECT_EQ(grid.input, (Tokens{0, 7, 0, 0}));
  EXPECT_EQ(grid.target, (Tokens{7, 0, -1, -1}));
  EXPECT_EQ(grid.doc_start, (std::vector<std::uint8_t>{1, 0, 1, 1}));
  EXPECT_EQ(grid.tokens, 2);
  EXPECT_EQ(grid.targets(), 2);
  set.append_window(2, 2, false, grid);
  EXPECT_EQ(grid.doc_start, (std::vector<std::uint8_t>{1, 0, 1, 1, 0, 0}));
}

// The role tokens are 0 to 4; contents begin at 10.
const Tokens kChat = {0, 4,  10, 3,         // system
                      1, 11, 12, 3,         // user
                      2, 13, 14, 3,         // assistant
                      1, 15, 3,             // user
                      2, 16, 3,             // assistant
                      0, 1,  17, 3, 2, 3};  // the next conversation, with an empty answer

TEST(TokenSet, TargetsAreAnswersAndTheirEndTokens) {
  const TokenSet set(kChat, chat_marks());
  Grid grid;
  set.append(0, set.size(), AfterLast::bos, grid);
  EXPECT_EQ(grid.input, kChat);
  Tokens learned;
  for (std::size_t i = 0; i < grid.target.size(); ++i)
    if (grid.target[i] >= 0) learned.push_back(static_cast<std::int32_t>(i) + 1);  // target index
  EXPECT_EQ(learned, (Tokens{9, 10, 11, 16, 17, 23}));
}

TEST(TokenSet, AnswerEndsAtBos) {
  const TokenSet set(Tokens{0, 2, 13, 0, 2, 14, 1, 15, 3}, chat_marks());  // no <end_turn>
  Grid grid;
  set.append(0, set.size(), AfterLast::bos, grid);
  EXPECT_EQ(grid.target, (Tokens{-1, 13, -1, -1, 14, -1, -1, -1, -1}));
}

TEST(TokenSet, TargetsDoNotDependOnTheStartOfTheRange) {
  // Contains an answer longer than the block size of the backward search.
  Tokens tokens = kChat;
  tokens.insert(tokens.end(), {0, 1, 18, 3, 2});
  tokens.insert(tokens.end(), 1000, 19);
  tokens.push_back(3);
  tokens.insert(tokens.end(), kChat.begin(), kChat.end());
  const TokenSet set(tokens, chat_marks());
  Grid whole;
  set.append(0, set.size(), AfterLast::bos, whole);
  for (std::size_t begin = 0; begin < tokens.size(); ++begin) {
    Grid part;
    set.append(begin, tokens.size() - begin, AfterLast::bos, part);
    ASSERT_TRUE(std::equal(part.target.begin(), part.target.end(),
                           whole.target.begin() + static_cast<std::ptrdiff_t>(begin)))
        << begin;
  }
}

TEST(TokenSet, LossOnAllScoresEveryToken) {
  const auto tokenizer = load_tokenizer("bytes:chat");
  const TokenSet set(kChat, TokenMarks::of(*tokenizer, DataKind::chat, LossOn::all));
  Grid grid;
  set.append(0, set.size(), AfterLast::bos, grid);
  EXPECT_EQ(grid.targets(), static_cast<std::int64_t>(kChat.size()));
  EXPECT_THROW(TokenMarks::of(*load_tokenizer("bytes"), DataKind::chat, LossOn::assistant), Error);
}

// Chats in a template: the marks say what is learned, and bos means nothing.
TEST(TokenSet, MarksOfTokensDecideTargetsAndDocuments) {
  constexpr std::int32_t L = kLearnedMark, D = kDocumentMark;
  const Tokens tokens = {5 | D, 0, 6 | L, 7 | L, 0, 8 | L, 9 | D, 6 | L};
  const TokenMarks answers{.bos = 0, .stored = true, .marked_only = true};
  const TokenSet set(tokens, answers);
  Grid grid;
  set.append(0, set.size(), AfterLast::bos, grid);
  EXPECT_EQ(grid.input, (Tokens{5, 0, 6, 7, 0, 8, 9, 6}));
  EXPECT_EQ(grid.target, (Tokens{-1, 6, 7, -1, 8, -1, 6, -1}));
  EXPECT_EQ(grid.doc_start, (std::vector<std::uint8_t>{1, 0, 0, 0, 0, 0, 1, 0}));
  EXPECT_EQ(set.document_starts(), (std::vector<std::uint64_t>{0, 6}));
  EXPECT_EQ(set.at(2), 6);
  Grid all, window;
  TokenSet(tokens, {.bos = 0, .stored = true}).append(0, tokens.size(), AfterLast::bos, all);
  EXPECT_EQ(all.target, (Tokens{0, 6, 7, 0, 8, -1, 6, -1})) << "all but the first of a document";
  set.append_window(6, 4, true, window);
  EXPECT_EQ(window.input, (Tokens{9, 6, 0, 0}));
  EXPECT_EQ(window.target, (Tokens{6, -1, -1, -1}));
}

TEST(TokenSet, ShardsWithMarksNeedAManifestThatMentionsThem) {
  const TempFolder folder;
  ShardWriter writer(10, ShardFormat::marked);
  writer.add(Tokens{5 | kDocumentMark, 6 | kLearnedMark});
  EXPECT_THROW(writer.add(Tokens{10 | kLearnedMark}), Error);
  PosixFileOps ops;
  const auto file = folder.path() / "data_train_000000.bin";
  writer.write(ops, file, Existing::refuse);
  EXPECT_EQ(ShardReader(file).format(), ShardFormat::marked);
  EXPECT_EQ(ShardReader(file).at(1), 6 | kLearnedMark);
  const TokenMarks marks{.stored = true, .marked_only = true};
  EXPECT_EQ(TokenSet::open(std::vector{file}, marks).at(1), 6);
  EXPECT_NE(message_of([&] { TokenSet::open(std::vector{file}, {}); }).find("does not mention"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              TokenSet::open(write_shards(folder, Tokens{1, 2}, {0}, "val"), marks);
            }).find("promises"),
            std::string::npos);
  TokenSet small = TokenSet::open(std::vector{file}, marks);
  small.set_vocab_size(6);
  EXPECT_NE(message_of([&] { small.at(1); }).find("token 6 at position 1 is outside"), std::string::npos);
}

TEST(TokenSet, FindsDocumentStarts) {
  EXPECT_EQ(TokenSet(kChat, chat_marks()).document_starts(), (std::vector<std::uint64_t>{0, 18}));
  EXPECT_EQ(TokenSet(Tokens{5, 0, 0, 6}, {}).document_starts(), (std::vector<std::uint64_t>{0, 1, 2}));
  EXPECT_EQ(TokenSet(Tokens(200'000, 7), {}).document_starts(), (std::vector<std::uint64_t>{0}));
}

TEST(TokenSet, FingerprintDependsOnTokensAndNotOnFiles) {
  TempFolder folder;
  auto tokens = counting(1000);
  const std::string fingerprint = TokenSet(tokens, {}).fingerprint();
  EXPECT_EQ(TokenSet::open(write_shards(folder, tokens, {1, 999}), {}).fingerprint(), fingerprint);
  tokens[500] = 0;
  EXPECT_NE(TokenSet(tokens, {}).fingerprint(), fingerprint);

  Tokens large((1 << 24) + 1, 3);
  const std::string of_large = TokenSet(large, {}).fingerprint();
  large.back() = 4;
  EXPECT_NE(TokenSet(large, {}).fingerprint(), of_large);
}

}  // namespace
}  // namespace thimble::token_set_test
