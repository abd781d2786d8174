// Slow tests: a gigabyte of text on one line.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>

#include "base/error.h"
#include "data/encode.h"
#include "support/temp_folder.h"
#include "tokenizer/bpe_train.h"

namespace thimble {

namespace {

constexpr std::size_t kGigabyte = 1 << 30;

std::size_t peak_megabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) / 1024;
}

std::filesystem::path one_line(const TempFolder& folder, std::string_view block) {
  const auto path = folder / "line.txt";
  std::ofstream file(path, std::ios::binary);
  for (std::size_t bytes = 0; bytes < kGigabyte; bytes += block.size()) file << block;
  return path;
}

}  // namespace

TEST(FullTierTokenizer, TrainsOnAGigabyteLineInBoundedMemory) {
  TempFolder folder;
  std::string block;
  for (int i = 0; i < 20'000; ++i) block += fmt::format("word{} and another ", i % 5000);
  const auto path = one_line(folder, block);
  const std::size_t before = peak_megabytes();
  TextSource source({path}, {.split = DocumentSplit::line});
  const BpeTrainResult result = train_bpe(source, {.vocab_size = 1000}, ProgressOutput::nowhere());
  EXPECT_GE(result.text_bytes, kGigabyte);
  EXPECT_LT(peak_megabytes() - before, 500u);

  // Encoding by lines must keep a complete line in memory, so this line is refused.
  const auto tokenizer = make_bpe_tokenizer(result.spec);
  EXPECT_THROW(encode_lines(*tokenizer, *open_byte_stream(path), {}, [](const auto&) {}), Error);
  // Encoding by documents works piece by piece.
  TextSource again({path}, {.split = DocumentSplit::line, .max_piece_bytes = 1 << 20});
  EXPECT_EQ(measure_text(*tokenizer, again, ProgressOutput::nowhere()).bytes, result.text_bytes);
  EXPECT_LT(peak_megabytes() - before, 1000u);
}

TEST(FullTierTokenizer, GigabyteWithoutWordBoundariesTrainsButCannotBeEncoded) {
  TempFolder folder;
  const auto path = one_line(folder, std::string(1 << 20, 'a'));
  const std::size_t before = peak_megabytes();
  TextSource source({path}, {.split = DocumentSplit::line});
  const BpeTrainResult result = train_bpe(source, {.vocab_size = 300}, ProgressOutput::nowhere());
  EXPECT_EQ(result.text_bytes, kGigabyte);
  EXPECT_LT(peak_megabytes() - before, 1500u);
  TextSource again({path}, {.split = DocumentSplit::line});
  EXPECT_THROW(measure_text(*make_bpe_tokenizer(result.spec), again, ProgressOutput::nowhere()), Error);
}

}  // namespace thimble
