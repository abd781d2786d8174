// Ids, and texts decoded from them, compared with those of Hugging Face's library and of llama.cpp.
#include <sstream>

#include "tokenizer/golden_tokenizers.h"

namespace thimble {

namespace {

// llama.cpp separates texts by a separator line, which may also end the file.
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

class HuggingFaceVectors : public testing::TestWithParam<const char*> {};

TEST_P(HuggingFaceVectors, MatchExactly) {
  const auto tokenizer = tokenizer_in(golden_path(fmt::format("tokenizers/{}.json", GetParam())));
  const auto texts = golden_strings("strings");
  const GoldenIds expected(GetParam());
  const auto ids = expected.ids("ids"), with_special = expected.ids("with_special");
  const auto& decoded = expected.texts("decoded");
  ASSERT_GT(texts.size(), 90u);
  ASSERT_EQ(ids.size(), texts.size());
  ASSERT_EQ(with_special.size(), texts.size());
  ASSERT_EQ(decoded.size(), texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    // Their library always parses special tokens.
    EXPECT_EQ(tokenizer->encode(texts[i], {.trusted = true}), ids[i]) << "text " << i << ": " << texts[i];
    EXPECT_EQ(tokenizer->encode(texts[i], {.trusted = true, .add_special = true}), with_special[i]) << i;
    EXPECT_EQ(tokenizer->decode(ids[i], {.keep_special = true}), decoded[i].as_string()) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, HuggingFaceVectors, testing::Values("gpt2", "llama3", "qwen2", "o200k"),
                         [](const auto& info) { return std::string(info.param); });

class LlamaCppVectors : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(LlamaCppVectors, MatchExactly) {
  const auto tokenizer = tokenizer_in(GetParam().parent_path() / "tokenizer.json.zst");
  const auto texts = texts_of(read_text_file(GetParam().parent_path() / "../vectors.inp"));
  const auto expected = ids_of(read_text_file(GetParam()));
  ASSERT_EQ(texts.size(), expected.size());
  ASSERT_GT(texts.size(), 30u);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer->encode(texts[i]), expected[i]) << "text " << i << ": [" << texts[i] << "]";
    EXPECT_EQ(tokenizer->decode(expected[i]), texts[i]);
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LlamaCppVectors);  // without ../shared
INSTANTIATE_TEST_SUITE_P(Shared, LlamaCppVectors,
                         testing::ValuesIn(golden_and_shared({},
                                                             {"fixtures/tokenizers/gpt2/vectors.out",
                                                              "fixtures/tokenizers/llama3_2/vectors.out",
                                                              "fixtures/tokenizers/qwen2_5/vectors.out"})),
                         [](const auto& info) { return name_of_file(info.param); });

}  // namespace thimble
