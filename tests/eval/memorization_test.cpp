#include "eval/memorization.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "data/shard.h"
#include "eval/small_model.h"
#include "support/temp_folder.h"

namespace thimble::memorization_test {
namespace {

using Text = std::vector<TokenId>;

constexpr TokenId kBos = 0;

// Random tokens below `vocabulary`, among them some bos, with passages that are repeated.
Text random_tokens(Rng& random, std::size_t count, std::uint64_t vocabulary) {
  Text tokens;
  while (tokens.size() < count) {
    if (tokens.size() > 10 && random.below(20) == 0) {
      const std::size_t begin = random.below(tokens.size()), length = 1 + random.below(30);
      for (std::size_t i = 0; i < length && begin + i < tokens.size(); ++i)
        tokens.push_back(tokens[begin + i]);
    }
    tokens.push_back(static_cast<TokenId>(random.below(vocabulary)));
  }
  tokens.resize(count);
  return tokens;
}

std::vector<Text> documents_of(const Text& stream) {
  std::vector<Text> documents(1);
  for (const TokenId token : stream) {
    if (token == kBos)
      documents.emplace_back();
    else
      documents.back().push_back(token);
  }
  return documents;
}

bool contains(const Text& document, std::span<const TokenId> run) {
  return !std::ranges::search(document, run).empty();
}

// The longest run that ends after `end` tokens of the text and is in a document, found by trying.
std::size_t longest_run(const Text& text, std::size_t end, const std::vector<Text>& documents) {
  std::size_t longest = 0;
  for (std::size_t length = 1; length <= end; ++length) {
    const auto run = std::span(text).subspan(end - length, length);
    if (std::ranges::none_of(documents, [&](const Text& document) { return contains(document, run); })) break;
    longest = length;
  }
  return longest;
}

TEST(VerbatimSearch, EqualsABruteForceSearch) {
  Rng random(5);
  for (int trial = 0; trial < 60; ++trial) {
    const TokenId vocabulary = 3 + trial % 9;
    const Text stream = random_tokens(random, 400, static_cast<std::uint64_t>(vocabulary));
    const std::vector<Text> documents = documents_of(stream);
    std::vector<Text> texts;
    for (int i = 0; i < 6; ++i) {
      texts.push_back(random_tokens(random, random.below(60), static_cast<std::uint64_t>(vocabulary)));
      std::erase(texts.back(), kBos);
    }
    texts.push_back(documents[documents.size() / 2]);
    VerbatimSearch search(texts, VerbatimAlphabet(vocabulary, kBos));
    for (std::size_t begin = 0; begin < stream.size();) {
      const std::size_t count = std::min(stream.size() - begin, 1 + random.below(100));
      search.read(std::span(stream).subspan(begin, count));
      begin += count;
    }
    const std::vector<VerbatimMatches> found = search.finish();
    ASSERT_EQ(found.size(), texts.size());
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const Text& text = texts[i];
      ASSERT_EQ(found[i].ending_at.size(), text.size());
      for (std::size_t end = 1; end <= text.size(); ++end) {
        const VerbatimMatch& match = found[i].ending_at[end - 1];
        ASSERT_EQ(match.tokens, longest_run(text, end, documents))
            << trial << ": text " << i << " to " << end;
        if (match.tokens == 0) continue;
        const auto run = std::span(text).subspan(end - match.tokens, match.tokens);
        const auto place =
            std::span(documents.at(match.document)).subspan(match.end - match.tokens, match.tokens);
        EXPECT_TRUE(std::ranges::equal(run, place)) << "the run is not where it was said to be";
      }
      EXPECT_EQ(found[i].is_complete, !text.empty() && std::ranges::count(documents, text) > 0) << trial;
    }
  }
}

TEST(VerbatimSearch, ARunDoesNotCrossTheEndOfADocument) {
  const Text text = {1, 2, 3, 4, 5, 6};
  VerbatimSearch search({&text, 1}, VerbatimAlphabet(8, kBos));
  search.read(Text{kBos, 7, 1, 2, 3, kBos, 4, 5, 6, 7});
  const auto found = search.finish();
  std::vector<std::uint32_t> lengths;
  for (const VerbatimMatch& match : found[0].ending_at) lengths.push_back(match.tokens);
  EXPECT_EQ(lengths, (std::vector<std::uint32_t>{1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(found[0].ending_at[2].document, 1u);
  EXPECT_EQ(found[0].ending_at[2].end, 4u);
  EXPECT_EQ(found[0].ending_at[5].document, 2u);
  EXPECT_EQ(found[0].ending_at[5].end, 3u);
  EXPECT_FALSE(found[0].is_complete);
}

TEST(VerbatimSearch, ForeignIdsAreInNoRun) {
  const Text text = {1, 2, 99, -4, 1, 2, 3};
  VerbatimSearch search({&text, 1}, VerbatimAlphabet(8, kBos));
  search.read(Text{1, 2, 99, -4, 1, 2, 3});
  const auto found = search.finish();
  std::vector<std::uint32_t> lengths;
  for (const VerbatimMatch& match : found[0].ending_at) lengths.push_back(match.tokens);
  EXPECT_EQ(lengths, (std::vector<std::uint32_t>{1, 2, 0, 0, 1, 2, 3}));
}

struct Fixture {
  Context context;
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer("bytes:chat");
  std::unique_ptr<Model> model = small_model(context, tokenizer->vocab_size(), 128);
  ChatTokens chat = ChatTokens::of(*tokenizer);

  Text encoded(const std::vector<std::string>& documents) const {
    Text tokens;
    for (const std::string& document : documents) {
      tokens.push_back(chat.bos);
      tokenizer->encode(document, tokens);
    }
    return tokens;
  }

  Memorization measure(const TokenSet& training, const TokenSet* held_out, bool chats = false) {
    const MemorizationData data{
        .read_training = [&](const auto& sink) { read_all(training, sink, ProgressOutput::nowhere()); },
        .held_out = held_out,
        .chats = chats};
    return measure_memorization(*model, *tokenizer, data, {.tokens = 2000}, ProgressOutput::nowhere());
  }
};

std::vector<std::string> numbered(int count, const char* what) {
  std::vector<std::string> documents;
  for (int i = 0; i < count; ++i)
    documents.push_back(fmt::format("{} {} is the {}th of its kind and is followed by number {}.", what,
                                    i * i, i, (i * 7919) % 1000));
  return documents;
}

TEST(Memorization, AnUntrainedModelRepeatsNothing) {
  Fixture f;
  const TokenSet training(f.encoded(numbered(100, "sentence")), {.bos = f.chat.bos});
  const TokenSet held_out(f.encoded(numbered(40, "answer")), {.bos = f.chat.bos});
  const Memorization result = f.measure(training, &held_out);
  EXPECT_GT(result.sampled.tokens, 500);
  EXPECT_EQ(result.sampled.run_share(), 0);
  EXPECT_EQ(result.sampled.grams_found[1], 0);
  EXPECT_EQ(result.training_tokens, training.size());
  EXPECT_FALSE(result.repeats_training_data());
}

TEST(Memorization, HeldOutTextIsMeasuredInTheSameWay) {
  Fixture f;
  const auto documents = numbered(100, "sentence");
  const TokenSet training(f.encoded(documents), {.bos = f.chat.bos});
  const Memorization same = f.measure(training, &training);
  ASSERT_TRUE(same.held_out.has_value());
  for (std::size_t i = 0; i < kVerbatimGrams.size(); ++i) EXPECT_EQ(same.held_out->gram_share(i), 1) << i;
  EXPECT_GT(same.held_out->run_share(), 0.4);  // every second one is only a part of a document
  EXPECT_GT(same.held_out->whole, 0);
  EXPECT_EQ(same.held_out->whole_share(), 1);
  EXPECT_GT(same.held_out->tokens, 1000);

  // The documents of "answer" have in common with those of "sentence" what follows the number.
  const TokenSet other(f.encoded(numbered(100, "answer")), {.bos = f.chat.bos});
  const Memorization different = f.measure(training, &other);
  EXPECT_EQ(different.held_out->whole_share(), 0);
  EXPECT_GT(different.held_out->gram_share(0), different.held_out->gram_share(2));
  EXPECT_GT(different.held_out->gram_share(0), 0.5);
  EXPECT_LT(different.held_out->gram_share(2), 1);

  EXPECT_FALSE(f.measure(training, nullptr).held_out.has_value());
}

TEST(Memorization, ChatsArePromptedWithHeldOutQuestions) {
  Fixture f;
  const ChatLayout layout = ChatLayout::roles(*f.tokenizer);
  Text tokens;
  for (const std::string& answer : numbered(50, "answer")) {
    const Text turns =
        layout.conversation(Conversation{{ChatRole::user, "what is next?"}, {ChatRole::assistant, answer}});
    tokens.insert(tokens.end(), turns.begin(), turns.end());
  }
  const TokenSet chats(tokens, {.bos = f.chat.bos, .answers_only = f.chat, .end_turn = f.chat.end_turn});
  const Memorization result = f.measure(chats, &chats, true);
  EXPECT_TRUE(result.chats);
  EXPECT_GT(result.held_out->whole, 5);
  EXPECT_EQ(result.held_out->whole_share(), 1) << "every answer is a turn of the training data";
  EXPECT_EQ(result.held_out->run_share(), 1);
  EXPECT_LT(result.held_out->characters, 70 * result.held_out->texts) << "questions are not part of the text";
}

TEST(Memorization, ShardsAreSearchedAsOneStream) {
  Fixture f;
  const Text tokens = f.encoded(numbered(100, "sentence"));
  const TempFolder folder;
  PosixFileOps ops;
  std::vector<std::filesystem::path> files;
  for (std::size_t begin = 0; begin < tokens.size(); begin += 1001) {
    ShardWriter writer(f.tokenizer->vocab_size());
    writer.add(std::span(tokens).subspan(begin, std::min<std::size_t>(1001, tokens.size() - begin)));
    files.push_back(folder / shard_name("a", "train", files.size()));
    writer.write(ops, files.back(), Existing::refuse);
  }
  ASSERT_GT(files.size(), 4u);
  const TokenMarks marks{.bos = f.chat.bos};
  const TokenSet whole(tokens, marks);
  const Memorization one = f.measure(whole, &whole),
                     several = f.measure(TokenSet::open(files, marks), &whole);
  EXPECT_EQ(one.to_json(), several.to_json());
  EXPECT_EQ(several.held_out->gram_share(2), 1);
}

TEST(Memorization, ShortDocumentsAreComparedAsAWhole) {
  Memorization result{
      .sampled = {.texts = 10, .characters = 60, .whole = 10, .whole_found = 4},
      .held_out = VerbatimShare{.texts = 10, .characters = 60, .whole = 10, .whole_found = 3}};
  EXPECT_TRUE(result.has_short_texts());
  EXPECT_TRUE(result.repeats_training_data());
  EXPECT_NE(result.line().find("40.00 %"), std::string::npos) << result.line();
  EXPECT_NE(result.line().find("30.00 %"), std::string::npos) << result.line();
  result.held_out->whole_found = 4;
  EXPECT_FALSE(result.repeats_training_data());
  result.sampled.characters = 1000;
  result.sampled.whole_found = 10;
  EXPECT_FALSE(result.repeats_training_data()) << "long texts are compared by their runs";
  result.sampled.run_characters = 20;
  EXPECT_TRUE(result.repeats_training_data());
}

TEST(Memorization, AContextOfOneTokenIsNoCrash) {
  Fixture f;
  f.model = small_model(f.context, f.tokenizer->vocab_size(), 1);
  const TokenSet one(Text{f.chat.bos}, {.bos = f.chat.bos});
  EXPECT_EQ(f.measure(one, nullptr).sampled.tokens, 0);
}

TEST(Memorization, TinySetsHaveFigures) {
  Fixture f;
  const TokenSet one(Text{f.chat.bos}, {.bos = f.chat.bos}), two(f.encoded({"a"}), {.bos = f.chat.bos});
  EXPECT_EQ(f.measure(two, &two).held_out->tokens, 1);
  EXPECT_THROW(f.measure(two, &one), Error);
  EXPECT_EQ(f.measure(one, nullptr).sampled.grams_found[0], 0);
  EXPECT_TRUE(std::isfinite(f.measure(one, nullptr).sampled.mean_run));
}

}  // namespace
}  // namespace thimble::memorization_test
