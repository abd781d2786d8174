#include "formats/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "tokenizer/bpe_train.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/shared_tokenizers.h"
#include "tokenizer/tokenizer_json.h"

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
    EXPECT_EQ(vocabulary.normalises, name == "qwen2_5");
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
  EXPECT_TRUE(vocabulary.normalises);
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
  EXPECT_EQ(refusal({.model = "gpt2", .pre = "gpt-2", .tokens = {"a", "b", "a"}}),
            "the GGUF has the token \"a\" twice");
  EXPECT_EQ(refusal({.model = "gpt2",
                     .pre = "gpt-2",
                     .tokens = {"a"},
                     .special = {.bos = 1, .eos = {}, .unk = {}, .pad = {}}}),
            "the GGUF has 1 tokens and the special id 1");
  EXPECT_EQ(refusal({.model = "llama", .pre = "", .tokens = {"a"}, .types = {9}}),
            "the GGUF has a token of type 9; expected 1 to 6");
}

TEST(GgufVocabulary, RefusesWhatLlamaCppCannotRun) {
  auto refusal = [](const Tokenizer& tokenizer) {
    return message_of([&] { gguf_vocabulary_of(tokenizer); });
  };
  BpeSpec spec;
  spec.vocab = {"a", "b", "ab"};
  spec.merges = {{0, 1, 2}};
  spec.decoder = {ByteLevelDecoder{}};
  spec.pre_tokenizer = {Split{{"[a-z]+", true}}, ByteLevel{.add_prefix_space = false, .use_regex = false}};
  EXPECT_EQ(refusal(*make_bpe_tokenizer(spec)),
            "llama.cpp has no name for how this tokenizer splits text: \"[a-z]+\"");
  spec.pre_tokenizer = {Split{{"[a-z]+", true}}};
  spec.decoder = {};
  EXPECT_EQ(refusal(*make_bpe_tokenizer(spec)),
            "llama.cpp runs byte-level BPE only, and this tokenizer's words are not bytes");
  spec.pre_tokenizer = {ByteLevel{}};
  spec.decoder = {ByteLevelDecoder{}};
  spec.normalizer = {Lowercase{}};
  EXPECT_EQ(refusal(*make_bpe_tokenizer(spec)), "llama.cpp cannot normalise text as this tokenizer does");
  spec.pre_tokenizer = {Split{{std::string(pattern_regex(Pattern::qwen2)), true}},
                        ByteLevel{.add_prefix_space = false, .use_regex = false}};
  EXPECT_EQ(refusal(*make_bpe_tokenizer(spec)), "llama.cpp cannot normalise text as this tokenizer does");
  spec.normalizer = {UnicodeForm::nfkc};
  EXPECT_EQ(refusal(*make_bpe_tokenizer(spec)), "llama.cpp cannot normalise text as this tokenizer does");
  spec.normalizer = {UnicodeForm::nfc};
  EXPECT_NO_THROW(gguf_vocabulary_of(*make_bpe_tokenizer(spec)));
  spec.post_processor.after = {0};
  EXPECT_EQ(refusal(*make_bpe_tokenizer(spec)),
            "llama.cpp puts bos before a text and nothing else around it; this tokenizer's template differs");
}

// Bytes are types of their own: without them llama.cpp stops at the first character it does not know.
GgufVocabulary pieces_with_bytes() {
  GgufVocabulary vocabulary{
      .model = "llama", .pre = "default", .tokens = {"<unk>", "<s>", "<call>", "a", "b", "ab"}};
  vocabulary.types = {2, 3, 4, 1, 1, 1};
  vocabulary.scores = {0, 0, 0, -2, -3, -1};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.push_back(fmt::format("<0x{:02X}>", byte));
    vocabulary.types.push_back(6);
    vocabulary.scores.push_back(0);
  }
  vocabulary.special = {.bos = 1, .eos = 1, .unk = 0, .pad = {}};
  vocabulary.add_bos = true;
  vocabulary.add_space_prefix = false;
  return vocabulary;
}

TEST(GgufVocabulary, OfPiecesComesBackWithEveryType) {
  const GgufVocabulary vocabulary = pieces_with_bytes();
  const auto tokenizer = tokenizer_from_gguf(vocabulary);
  EXPECT_EQ(tokenizer->encode("ab<call>\n"), (std::vector<TokenId>{5, 2, 6 + 10}));
  const GgufVocabulary again = gguf_vocabulary_of(*tokenizer);
  EXPECT_EQ(again.tokens, vocabulary.tokens);
  EXPECT_EQ(again.types, vocabulary.types);
  EXPECT_EQ(again.scores, vocabulary.scores);
  EXPECT_EQ(again.special.bos, 1);
  EXPECT_EQ(again.special.unk, 0);
  EXPECT_FALSE(again.add_space_prefix);
}

TEST(GgufVocabulary, OfPiecesWithoutBytesIsRefused) {
  GgufVocabulary vocabulary = pieces_with_bytes();
  vocabulary.tokens.resize(6);
  vocabulary.types.resize(6);
  vocabulary.scores.resize(6);
  const auto tokenizer = tokenizer_from_gguf(vocabulary);
  EXPECT_EQ(message_of([&] { gguf_vocabulary_of(*tokenizer); }),
            "llama.cpp fails at characters that a SentencePiece model without bytes does not know");
}

}  // namespace thimble
