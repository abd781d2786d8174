#include "tokenizer/gguf_vocabulary.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/temp_folder.h"
#include "tokenizer/bpe_train.h"
#include "tokenizer/shared_tokenizers.h"

namespace thimble {

TEST(GgufVocabulary, OfRealTokenizersGivesTheSameIds) {
  if (!shared_path("fixtures/tokenizers")) GTEST_SKIP() << shared_missing("fixtures/tokenizers");
  const std::string text = shared_text("corpora/udhr2_all_utf8.txt.zst").substr(0, 300'000);
  for (const auto& [name, pre] : std::vector<std::pair<std::string, std::string>>{
           {"gpt2", "gpt-2"}, {"llama3_2", "llama-bpe"}, {"qwen2_5", "qwen2"}}) {
    const auto tokenizer = shared_tokenizer(name);
    const GgufVocabulary vocabulary = gguf_vocabulary_of(*tokenizer);
    EXPECT_EQ(vocabulary.model, "gpt2");
    EXPECT_EQ(vocabulary.pre, pre);
    const auto again = tokenizer_from_gguf(vocabulary);
    EXPECT_EQ(again->vocab_size(), tokenizer->vocab_size());
    EXPECT_EQ(again->special_tokens(), tokenizer->special_tokens());
    EXPECT_EQ(again->special().eos, tokenizer->special().eos);
    // GGUF has no place for Qwen's NFC: ASCII stays.
    const std::string sample = name == "qwen2_5" ? shared_text("corpora/tinyshakespeare.txt") : text;
    EXPECT_TRUE(again->encode(sample) == tokenizer->encode(sample)) << name;
  }
}

TEST(GgufVocabulary, OfAGolfModelGivesTheSameIdsForCleanText) {
  constexpr std::string_view kModel = "fixtures/sentencepiece/fineweb_1024_bpe.model";
  if (!shared_path(kModel)) GTEST_SKIP() << shared_missing(kModel);
  const auto tokenizer = load_tokenizer(*shared_path(kModel));
  const GgufVocabulary vocabulary = gguf_vocabulary_of(*tokenizer);
  EXPECT_EQ(vocabulary.model, "llama");
  EXPECT_FALSE(vocabulary.add_space_prefix);
  const auto again = tokenizer_from_gguf(vocabulary);
  EXPECT_EQ(again->special().unk, 3);
  EXPECT_EQ(again->special().bos, 1);
  for (const std::string clean : {"Hello, world!", "The quick brown fox 1234", "caf\u00E9 \u4E2D"}) {
    EXPECT_EQ(again->encode(clean), tokenizer->encode(clean));
    EXPECT_EQ(again->decode(again->encode(clean)), clean);
  }
}

TEST(GgufVocabulary, RefusesByName) {
  auto refusal = [](GgufVocabulary vocabulary) -> std::string {
    try {
      tokenizer_from_gguf(vocabulary);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal({.model = "bert", .pre = "", .tokens = {"a"}}),
            "the GGUF's tokenizer.ggml.model is \"bert\", which thimble does not support");
  EXPECT_EQ(refusal({.model = "gpt2", .pre = "tekken", .tokens = {"a"}}),
            "the GGUF's tokenizer.ggml.pre is \"tekken\", which thimble does not support");
  EXPECT_EQ(refusal({.model = "gpt2", .pre = "gpt-2", .tokens = {"a"}, .merges = {"a b"}}),
            "the GGUF's merge \"a b\" needs the token \"b\", which is not there");
  EXPECT_EQ(refusal({.model = "llama", .pre = "", .tokens = {"a"}}), "the GGUF has 1 tokens and 0 scores");
  EXPECT_EQ(refusal({.model = "llama", .pre = "", .tokens = {"a"}, .types = {9}}),
            "the GGUF has a token of type 9; expected 1 to 6");
}

}  // namespace thimble
