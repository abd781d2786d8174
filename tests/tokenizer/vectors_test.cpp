#include <sstream>

#include "tokenizer/shared_tokenizers.h"

namespace thimble {

namespace {

constexpr std::string_view kInputs = "fixtures/tokenizers/vectors.inp";

// Texts are separated by a line of its own; the last one, too, ends with it.
std::vector<std::string> texts_of(const std::string& file) {
  constexpr std::string_view kSeparator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> texts;
  std::size_t start = 0;
  for (std::size_t at; (at = file.find(kSeparator, start)) != file.npos; start = at + kSeparator.size())
    texts.push_back(file.substr(start, at - start));
  if (start < file.size()) texts.push_back(file.substr(start));
  return texts;
}

std::vector<std::vector<TokenId>> ids_of(const std::string& file) {
  std::vector<std::vector<TokenId>> lines;
  std::istringstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream numbers(line);
    std::vector<TokenId> ids;
    for (TokenId id; numbers >> id;) ids.push_back(id);
    lines.push_back(ids);
  }
  return lines;
}

}  // namespace

class Vectors : public testing::TestWithParam<const char*> {};

TEST_P(Vectors, OfLlamaCppAreMatchedExactly) {
  if (!shared_path(kInputs)) GTEST_SKIP() << shared_missing(kInputs);
  const auto tokenizer = shared_tokenizer(GetParam());
  const auto texts = texts_of(shared_text(kInputs));
  const auto expected =
      ids_of(shared_text("fixtures/tokenizers/" + std::string(GetParam()) + "/vectors.out"));
  ASSERT_EQ(texts.size(), expected.size());
  ASSERT_GT(texts.size(), 30u);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer->encode(texts[i]), expected[i]) << "text " << i << ": [" << texts[i] << "]";
    EXPECT_EQ(tokenizer->decode(expected[i]), texts[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, Vectors, testing::Values("gpt2", "llama3_2", "qwen2_5"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace thimble
