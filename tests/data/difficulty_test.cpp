#include "data/difficulty.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "data/sample/corpus.h"
#include "support/temp_folder.h"

namespace thimble::difficulty_test {
namespace {

std::string random_bytes(std::size_t count) {
  Rng random(1);
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += static_cast<char>(random.below(256));
  return text;
}

std::string repeated(std::string_view line, std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += line;
  return text;
}

SampledText sample_of(const std::filesystem::path& input, ReadOptions read = {},
                     std::uint64_t most_bytes = kSampleTextBytes) {
  const Interrupt interrupt;
  return sample_text(find_source(input.string()), read, interrupt, most_bytes);
}

TEST(Difficulty, IsTheEntropyOfSimpleSources) {
  const std::string noise = random_bytes(200'000), again = repeated("the same line\n", 20'000);
  EXPECT_NEAR(ngram_bits_per_byte(noise.substr(0, 100'000), noise.substr(100'000)), 8, 0.4)
      << "random bytes cannot be predicted";
  EXPECT_LT(ngram_bits_per_byte(again, again), 0.01);
  std::string coins = random_bytes(100'000);
  for (char& c : coins) c = (c & 1) != 0 ? 'a' : 'b';
  EXPECT_NEAR(ngram_bits_per_byte(coins.substr(0, 50'000), coins.substr(50'000)), 1, 0.01);
}

TEST(Difficulty, IsEightBitsWithoutText) {
  EXPECT_EQ(ngram_bits_per_byte("", "abc"), 8);
  EXPECT_EQ(ngram_bits_per_byte("abc", ""), 8);
}

TEST(Difficulty, FallsWithMoreText) {
  std::string tales;
  sample::write_corpus({.kind = sample::CorpusKind::tales, .bytes = 300'000},
                       [&](std::string_view more) { tales += more; });
  const std::string_view text = tales, held_out = text.substr(250'000);
  EXPECT_LT(ngram_bits_per_byte(text.substr(0, 250'000), held_out),
            ngram_bits_per_byte(text.substr(0, 25'000), held_out));
}

TEST(TextSamples, HoldOutTheEndOfALongDocument) {
  TempFolder folder;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>('a' + i / 100);
  const SampledText sample = sample_of(folder.write("a.txt", text));
  EXPECT_TRUE(sample.is_complete);
  EXPECT_EQ(sample.bytes, 1000);
  EXPECT_EQ(sample.documents, 1);
  EXPECT_EQ(sample.train, text.substr(0, 900) + "\n");
  EXPECT_EQ(sample.held_out, text.substr(900) + "\n");
}

TEST(TextSamples, HoldOutOneOfTenDocuments) {
  TempFolder folder;
  std::string text;
  for (int i = 0; i < 200; ++i) text += "document " + std::to_string(1000 + i) + "\n";
  const SampledText sample = sample_of(folder.write("a.txt", text), {.split = DocumentSplit::line});
  EXPECT_EQ(sample.documents, 200);
  EXPECT_EQ(std::ranges::count(sample.held_out, '\n'), 20);
  EXPECT_EQ(std::ranges::count(sample.train, '\n'), 180);
  EXPECT_EQ(sample.train.find(sample.held_out.substr(0, 14)), std::string::npos) << "in one part only";
}

TEST(TextSamples, EstimateTheSizeOfWhatTheyDoNotRead) {
  TempFolder folder;
  const std::string file = repeated("A line of some text.\n", 300'000);
  for (int i = 0; i < 50; ++i) folder.write("many/" + std::to_string(i) + ".txt", file);
  const SampledText sample = sample_of(folder / "many", {}, 320'000);
  EXPECT_FALSE(sample.is_complete);
  EXPECT_LT(sample.train.size() + sample.held_out.size(), 700'000u);
  EXPECT_NEAR(sample.bytes, 50.0 * static_cast<double>(file.size()), 0.01 * sample.bytes);
}

TEST(TextSamples, ContainTheContentsOfChats) {
  TempFolder folder;
  std::string lines;
  for (int i = 0; i < 30; ++i)
    lines += R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}])"
             "\n";
  const SampledText sample = sample_of(folder.write("a.jsonl", lines), {.kind = DataKind::chat});
  EXPECT_EQ(sample.documents, 30);
  EXPECT_EQ(sample.train.find("role"), std::string::npos);
  EXPECT_NE(sample.train.find("Hello."), std::string::npos);
}

}  // namespace
}  // namespace thimble::difficulty_test
