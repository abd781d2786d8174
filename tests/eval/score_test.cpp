#include "eval/score.h"

#include <cmath>

#include "base/error.h"
#include "eval/small_model.h"
#include "tokenizer/chat_layout.h"

namespace thimble::score_test {
namespace {

struct Fixture {
  Context context;
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer("bytes:chat");
  std::unique_ptr<Model> model;
  std::vector<std::int32_t> tokens = {*tokenizer->special().bos};

  explicit Fixture(std::int64_t tokens_of_context = 16)
      : model(small_model(context, tokenizer->vocab_size(), tokens_of_context)) {
    tokenizer->encode("The quick brown fox jumps over the lazy dog, twice, and then rests under a tree.",
                      tokens);
  }

  TokenSet text() const { return {tokens, TokenMarks::of(*tokenizer, DataKind::text, LossOn::assistant)}; }
  TokenSet chats(std::span<const Conversation> conversations) const {
    std::vector<std::int32_t> all;
    for (const Conversation& turns : conversations) {
      const auto ids = ChatLayout::roles(*tokenizer).conversation(turns);
      all.insert(all.end(), ids.begin(), ids.end());
    }
    return {all, TokenMarks::of(*tokenizer, DataKind::chat, LossOn::assistant)};
  }
  Score score(const TokenSet& set, const ScoreOptions& options = {}) {
    const ByteTable bytes(*tokenizer, static_cast<TokenId>(model->config().vocab_size));
    return score_set(*model, bytes, set, options, ProgressOutput::nowhere());
  }
  // The nats of the tokens [first, ids.size()), scored in a single row.
  double nats_in_one_row(const std::vector<std::int32_t>& ids, std::size_t first) {
    std::vector<std::int32_t> input(ids.begin(), ids.end() - 1), target(ids.begin() + 1, ids.end());
    for (std::size_t i = 0; i + 1 < first; ++i) target[i] = -1;
    double nats = 0;
    for (float value :
         model->score(grid_rows(model->config(), static_cast<std::int64_t>(input.size()), input, target))
             .nats)
      nats += value;
    return nats;
  }
};

const std::vector<Conversation> kChats = {
    {{ChatRole::user, "Hi"}, {ChatRole::assistant, "Yes"}},
    {{ChatRole::user, "1+1"}, {ChatRole::assistant, "2"}},
    {{ChatRole::user, "a"}, {ChatRole::assistant, "b"}, {ChatRole::user, "c"}, {ChatRole::assistant, "de"}},
};

TEST(Score, EveryTokenIsScoredOnceForAnyBatchSize) {
  Fixture f;
  const Score all = f.score(f.text());
  EXPECT_EQ(all.tokens, static_cast<std::int64_t>(f.tokens.size()));
  EXPECT_EQ(all.bytes, f.tokens.size() - 1) << "the closing bos has no bytes";
  const Score few = f.score(f.text(), {.tokens_at_a_time = 16});
  EXPECT_EQ(few.tokens, all.tokens);
  EXPECT_NEAR(few.nats, all.nats, 1e-4);
  EXPECT_NEAR(all.bits_per_byte(), all.nats / std::log(2.0) / static_cast<double>(all.bytes), 1e-12);
}

TEST(Score, EqualsScoringWindowByWindow) {
  Fixture f;
  std::vector<std::int32_t> tokens = f.tokens;
  tokens.push_back(f.tokens.front());
  double nats = 0;
  for (std::size_t at = 0; at + 1 < tokens.size(); at += 16) {
    const std::size_t count = std::min<std::size_t>(16, tokens.size() - 1 - at);
    nats += f.nats_in_one_row({tokens.begin() + static_cast<std::ptrdiff_t>(at),
                               tokens.begin() + static_cast<std::ptrdiff_t>(at + count + 1)},
                              0);
  }
  EXPECT_NEAR(f.score(f.text()).nats, nats, 1e-4);
}

TEST(Score, AModelWithNaNIsAnErrorUnlessItMayDiverge) {
  Fixture f;
  f.model->weights()[5] = NAN;
  f.model->weights_changed();
  EXPECT_THROW(f.score(f.text()), Error);
  EXPECT_TRUE(std::isnan(f.score(f.text(), {.may_diverge = true}).loss()));
}

TEST(Score, NatsPerCharacterCountTheEndOfADocumentAsOne) {
  Fixture f;
  f.tokens = {*f.tokenizer->special().bos};
  f.tokenizer->encode("na\u00EFve", f.tokens);
  f.tokens.push_back(*f.tokenizer->special().bos);
  f.tokenizer->encode("\U0001F600", f.tokens);
  const Score text = f.score(f.text());
  EXPECT_EQ(text.bytes, 6u + 4u);
  EXPECT_EQ(text.characters, 5u + 1u + 2u) << "two documents end";
  EXPECT_DOUBLE_EQ(text.nats_per_character(), text.nats / 8);
  EXPECT_EQ(f.score(f.chats(kChats)).characters, 3u + 1u + 1u + 2u + 4u) << "every answer ends";
  EXPECT_EQ(Score{}.nats_per_character(), 0);
}

TEST(Score, StopsAtTheLimit) {
  Fixture f;
  EXPECT_EQ(f.score(f.text(), {.val_tokens = 10}).tokens, 10);
  EXPECT_EQ(f.score(f.text(), {.val_tokens = 20, .tokens_at_a_time = 16}).tokens, 20);
}

TEST(Score, ChatsCountOnlyTheAssistantsTurnsAndTheirContents) {
  Fixture f;
  const Score score = f.score(f.chats(kChats));
  EXPECT_EQ(score.bytes, std::string("Yes2bde").size()) << "<end_turn> has no bytes";
  EXPECT_EQ(score.tokens, 7 + 4) << "<end_turn> has nats";
}

TEST(Score, ConversationsAreScoredIndependently) {
  Fixture f(64);  // all conversations fit into one row
  double nats = 0;
  for (const Conversation& turns : std::span(kChats).first(2)) {
    const std::size_t prompt = ChatLayout::roles(*f.tokenizer).prompt(std::span(turns).first(1)).size();
    nats += f.nats_in_one_row(ChatLayout::roles(*f.tokenizer).conversation(turns), prompt);
  }
  EXPECT_NEAR(f.score(f.chats(std::span(kChats).first(2))).nats, nats, 1e-4);
  // The order of the conversations does not matter.
  const std::vector<Conversation> reordered = {kChats[1], kChats[2], kChats[0]};
  EXPECT_NEAR(f.score(f.chats(reordered)).nats, f.score(f.chats(kChats)).nats, 1e-4);
}

TEST(Score, AConversationLongerThanTheContextIsScoredInPieces) {
  Fixture f;
  const std::string answer(40, 'x');
  const std::vector<Conversation> chats = {{{ChatRole::user, "go"}, {ChatRole::assistant, answer}}};
  const Score score = f.score(f.chats(chats));
  EXPECT_EQ(score.tokens, 41);
  EXPECT_EQ(score.bytes, 40u);
}

struct Scored {
  Score whole;
  std::vector<Score> parts;
  bool are_documents;
};

Scored scored_in_parts(Fixture& f, const TokenSet& set, ScoreOptions options) {
  ScoreParts parts(set);
  options.on_target = [&](std::uint64_t input, double nats, std::uint64_t bytes) {
    parts.add(input, nats, bytes);
  };
  const Score whole = f.score(set, options);
  return {whole, parts.scores(), parts.are_documents()};
}

void expect_sum(const Scored& scored) {
  Score sum;
  for (const Score& part : scored.parts) {
    sum.nats += part.nats;
    sum.tokens += part.tokens;
    sum.bytes += part.bytes;
  }
  EXPECT_NEAR(sum.nats, scored.whole.nats, 1e-9 * scored.whole.nats);
  EXPECT_EQ(sum.tokens, scored.whole.tokens);
  EXPECT_EQ(sum.bytes, scored.whole.bytes);
}

TEST(ScoreParts, AreTheScoresOfTheDocuments) {
  Fixture f;
  std::vector<std::vector<std::int32_t>> documents;
  std::vector<std::int32_t> all;
  for (int i = 0; i < 20; ++i) {
    documents.push_back({*f.tokenizer->special().bos});
    f.tokenizer->encode(std::string(static_cast<std::size_t>(1 + 3 * i), static_cast<char>('a' + i)),
                        documents.back());
    all.insert(all.end(), documents.back().begin(), documents.back().end());
  }
  const TokenMarks marks = TokenMarks::of(*f.tokenizer, DataKind::text, LossOn::assistant);
  for (const std::int64_t stride : {16, 5}) {
    const Scored scored = scored_in_parts(f, {all, marks}, {.stride = stride, .tokens_at_a_time = 48});
    EXPECT_TRUE(scored.are_documents);
    expect_sum(scored);
    ASSERT_EQ(scored.parts.size(), 20u);
    for (std::size_t i = 0; i < documents.size(); ++i) {
      const Score alone = f.score({documents[i], marks}, {.stride = stride});
      EXPECT_NEAR(scored.parts[i].nats, alone.nats, 1e-5 * alone.nats) << i;
      EXPECT_EQ(scored.parts[i].bytes, alone.bytes) << i;
    }
  }
}

TEST(ScoreParts, AreBlocksOfTextIfThereAreFewDocuments) {
  Fixture f;
  for (int i = 0; i < 40; ++i) f.tokenizer->encode("This sentence is repeated forty times over.", f.tokens);
  const std::size_t bytes = f.tokens.size() - 1;
  const Scored scored = scored_in_parts(f, f.text(), {});
  EXPECT_FALSE(scored.are_documents);
  expect_sum(scored);
  ASSERT_EQ(scored.parts.size(), (bytes + 127) / 128);
  for (std::size_t i = 0; i + 1 < scored.parts.size(); ++i) EXPECT_EQ(scored.parts[i].bytes, 128u) << i;
}

TEST(ScoreParts, HaveAtMost256Blocks) {
  Fixture f;
  ScoreParts parts(f.text());
  for (std::uint64_t i = 0; i < 300'000; ++i) parts.add(i, 1, 3);
  const std::vector<Score> blocks = parts.scores();
  EXPECT_LE(blocks.size(), ScoreParts::kMostBlocks);
  EXPECT_GT(blocks.size(), ScoreParts::kMostBlocks / 2);
  for (std::size_t i = 0; i + 1 < blocks.size(); ++i) EXPECT_NEAR(blocks[i].nats, blocks[0].nats, 2) << i;
}

}  // namespace
}  // namespace thimble::score_test
