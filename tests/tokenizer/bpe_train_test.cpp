#include "tokenizer/bpe_train.h"

#include <algorithm>
#include <functional>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "base/parallel.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "tokenizer/golden_tokenizers.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/unicode.h"

namespace thimble {

namespace {

BpeTrainResult train_on(const std::filesystem::path& path, const BpeTrainOptions& options,
                        DocumentSplit split = DocumentSplit::end_of_text) {
  TextSource source({path}, {.split = split});
  return train_bpe(source, options, ProgressOutput::nowhere());
}

std::string merges_text(const BpeSpec& spec) {
  std::string out;
  for (const Merge& merge : spec.merges)
    out += spec.vocab[static_cast<std::size_t>(merge.left)] + " " +
           spec.vocab[static_cast<std::size_t>(merge.right)] + "\n";
  return out;
}

}  // namespace

// The merges are those of a trainer in Python (tests/golden/make.py). Many pairs are equally
// frequent.
TEST(BpeTrain, MatchesTheReferenceMergesWithTiesByGreaterBytes) {
  const auto texts = golden_and_shared({"corpus/tales.txt.gz"}, {"fixtures/bpe-train/cs336-corpus.en"});
  const auto merges = golden_and_shared({"tokenizers/merges.txt"},
                                        {"fixtures/bpe-train/cs336-train-bpe-reference-merges.txt"});
  ASSERT_EQ(texts.size(), merges.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const BpeTrainResult result = train_on(texts[i], {.vocab_size = 500,
                                                      .min_frequency = 1,
                                                      .pattern = Pattern::gpt2,
                                                      .special_tokens = {"<|endoftext|>"},
                                                      .ties = Ties::greater_bytes});
    const std::string expected = read_text_file(merges[i]);
    EXPECT_EQ(merges_text(result.spec), expected.ends_with('\n') ? expected : expected + "\n") << texts[i];

    std::set<std::string> expected_tokens = {"<|endoftext|>"};
    for (int byte = 0; byte < 256; ++byte)
      expected_tokens.insert(byte_level_text(std::string(1, static_cast<char>(byte))));
    std::istringstream lines(expected);
    for (std::string left, right; lines >> left >> right;) expected_tokens.insert(left + right);
    EXPECT_EQ(std::set(result.spec.vocab.begin(), result.spec.vocab.end()), expected_tokens);
    EXPECT_EQ(result.spec.vocab.size(), 500u);
    EXPECT_EQ(result.spec.vocab[0], "<|endoftext|>");
  }
}

TEST(BpeTrain, PutsSpecialTokensFirstThenAllBytes) {
  TempFolder folder;
  const auto result = train_on(folder.write("a.txt", "aaa bbb aaa bbb"),
                               {.vocab_size = 270, .special_tokens = special_tokens_for(true)});
  const auto tokenizer = make_bpe_tokenizer(result.spec);
  const std::vector<std::pair<std::string, TokenId>> expected = {
      {"<bos>", 0}, {"<user>", 1}, {"<assistant>", 2}, {"<end_turn>", 3}, {"<system>", 4}};
  EXPECT_EQ(tokenizer->special_tokens(), expected);
  EXPECT_EQ(tokenizer->special().bos, 0);
  std::string all_bytes;
  for (int byte = 0; byte < 256; ++byte) all_bytes += static_cast<char>(byte);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(all_bytes)), all_bytes);
}

TEST(BpeTrain, TextNeverBecomesASpecialToken) {
  TempFolder folder;
  const auto result = train_on(folder.write("a.txt", "bos bos bos bos <bos> <bos> <bos> <bos>"),
                               {.vocab_size = 300, .min_frequency = 1});
  const auto tokenizer = make_bpe_tokenizer(result.spec);
  for (const std::string text : {"<bos>", "a<bos>b", " <bos>"}) {
    const auto ids = tokenizer->encode(text);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 0), 0) << text;
    EXPECT_EQ(tokenizer->decode(ids), text);
  }
}

TEST(BpeTrain, DoesNotDependOnTheNumberOfThreads) {
  TempFolder folder;
  const auto text = folder.write("a.txt", long_text(2'000'000));
  const int before = max_threads();
  std::vector<std::string> files;
  for (const int threads : {1, 2, 3}) {
    set_threads(threads);
    files.push_back(write_tokenizer_json(train_on(text, {.vocab_size = 1000}).spec));
  }
  set_threads(before);
  EXPECT_EQ(files[0], files[1]);
  EXPECT_EQ(files[0], files[2]);
}

// In a ThreadPool, OpenMP's thread number is always 0, so it cannot select per-thread counts.
TEST(BpeTrain, CountsEveryWordOnAThreadPool) {
  constexpr std::uint64_t kWords = 2000000;
  TempFolder folder;
  std::string text;
  for (std::uint64_t i = 0; i < kWords; ++i) text += i % 3 == 0 ? " a" : i % 3 == 1 ? " b" : " c";
  TextSource source({folder.write("a.txt", text)}, {.split = DocumentSplit::end_of_text});
  ThreadPool pool(4);
  const PoolScope scope(pool);
  const WordCounts counts = count_words(source, Pattern::gpt2, ProgressOutput::nowhere());
  std::uint64_t counted = 0;
  for (const WordCounts::Word& word : counts.sorted()) counted += word.count;
  EXPECT_EQ(counted, kWords);
  EXPECT_EQ(counts.size(), 3u);
}

TEST(BpeTrain, StopsWhenNoPairIsFrequentEnough) {
  TempFolder folder;
  const auto file = folder.write("a.txt", "ab ab ab cd cd");
  EXPECT_EQ(merges_text(train_on(file, {.vocab_size = 4096, .min_frequency = 3}).spec), "a b\n");
  EXPECT_EQ(merges_text(train_on(file, {.vocab_size = 4096, .min_frequency = 2}).spec),
            "a b\nc d\nĠ ab\nĠ cd\n");
}

TEST(BpeTrain, ReportsInvalidOptionsAndEmptyText) {
  TempFolder folder;
  const auto file = folder.write("a.txt", "abc"), empty = folder.write("empty.txt", "");
  EXPECT_EQ(message_of([&] { train_on(file, {.vocab_size = 256}); }),
            "a vocabulary of 256 is too small for 1 special tokens and the 256 bytes");
  EXPECT_EQ(message_of([&] { train_on(empty, {}); }), "there is no text to train on: all 1 files are empty");
}

TEST(BpeTrain, CuttingLongDocumentsDoesNotChangeTheCounts) {
  TempFolder folder;
  std::vector<std::filesystem::path> files = {folder.write("a.txt", long_text(500'000))};
  if (const auto wiki = shared_path("corpora/wiki.test.raw")) files.push_back(*wiki);
  for (const std::filesystem::path& file : files) {
    TextSource whole({file}, {.split = DocumentSplit::file});
    TextSource cut({file}, {.split = DocumentSplit::file, .max_piece_bytes = 20'000});
    const auto counts = count_words(whole, Pattern::gpt2, ProgressOutput::nowhere());
    const auto cut_counts = count_words(cut, Pattern::gpt2, ProgressOutput::nowhere());
    const auto a = counts.sorted(), b = cut_counts.sorted();
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].text, b[i].text);
      EXPECT_EQ(a[i].count, b[i].count) << a[i].text;
    }
  }
}

}  // namespace thimble
