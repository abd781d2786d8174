#include "formats/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "tokenizer/bpe_train.h"
#include "tokenizer/golden_tokenizers.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {

TEST(GgufVocabulary, TokenizersOfEveryFamilyKeepTheirIds) {
  const std::string ascii = golden_text("corpus/tales.txt.gz").substr(0, 40'000);
  std::string every_script = golden_text("corpus/scripts.txt");
  if (const auto languages = shared_path("corpora/udhr2_all_utf8.txt.zst"))
    every_script += read_text_file(*languages).substr(0, 300'000);
  const std::map<std::string, std::string> names = {
      {"gpt2", "gpt-2"}, {"llama3", "llama-bpe"}, {"qwen2", "qwen2"}, {"o200k", "gpt-4o"}};
  for (const std::filesystem::path& file : bpe_files()) {
    const auto name = std::ranges::find_if(names, [&](const auto& entry) {
      return file.string().find("tokenizers/" + entry.first) != std::string::npos;
    });
    ASSERT_NE(name, names.end()) << file;
    const auto tokenizer = tokenizer_in(file);
    const GgufVocabulary vocabulary = gguf_vocabulary_of(*tokenizer);
    EXPECT_EQ(vocabulary.model, "gpt2");
    EXPECT_EQ(vocabulary.pre, name->second);
    EXPECT_EQ(vocabulary.normalizes, normalizes_to_nfc(file));
    const auto again = tokenizer_from_gguf(vocabulary);
    EXPECT_EQ(again->vocab_size(), tokenizer->vocab_size());
    EXPECT_EQ(again->special_tokens(), tokenizer->special_tokens());
    EXPECT_EQ(again->special().eos, tokenizer->special().eos);
    // A GGUF cannot express Qwen's NFC, so this compares ASCII text.
    const std::string& sample = vocabulary.normalizes ? ascii : every_script;
    EXPECT_TRUE(again->encode(sample) == tokenizer->encode(sample)) << file;
  }
}

TEST(GgufVocabulary, GolfTokenizerKeepsItsIdsForNormalizedText) {
  for (const std::filesystem::path& file : golf_tokenizer_files()) {
    const auto tokenizer = load_tokenizer(file);
    const GgufVocabulary vocabulary = gguf_vocabulary_of(*tokenizer);
    EXPECT_EQ(vocabulary.model, "llama");
    EXPECT_FALSE(vocabulary.add_space_prefix);
    EXPECT_TRUE(vocabulary.normalizes);
    const auto again = tokenizer_from_gguf(vocabulary);
    EXPECT_EQ(again->special().unk, 3);
    EXPECT_EQ(again->special().bos, 1);
    for (const std::string clean : {"Hello, world!", "The quick brown fox 1234", "caf\u00E9 \u4E2D"}) {
      EXPECT_EQ(again->encode(clean), tokenizer->encode(clean)) << file;
      EXPECT_EQ(again->decode(again->encode(clean)), clean) << file;
    }
  }
}

TEST(GgufVocabulary, RejectsUnsupportedVocabulariesByName) {
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
            "the GGUF's merge \"a b\" needs the token \"b\", which is missing");
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

TEST(GgufVocabulary, RejectsWhatLlamaCppCannotRun) {
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
            "llama.cpp supports only byte-level BPE, and this tokenizer is not byte-level");
  spec.pre_tokenizer = {ByteLevel{}};
  spec.decoder = {ByteLevelDecoder{}};
  spec.normalizer = {Lowercase{}};
  EXPECT_EQ(refusal(*make_bpe_tokenizer(spec)), "llama.cpp does not support this tokenizer's normalizer");
  spec.pre_tokenizer = {Split{{std::string(pattern_regex(Pattern::qwen2)), true}},
                        ByteLevel{.add_prefix_space = false, .use_regex = false}};
  EXPECT_EQ(refusal(*make_bpe_tokenizer(spec)), "llama.cpp does not support this tokenizer's normalizer");
  spec.normalizer = {UnicodeForm::nfkc};
  EXPECT_EQ(refusal(*make_bpe_tokenizer(spec)), "llama.cpp does not support this tokenizer's normalizer");
  spec.normalizer = {UnicodeForm::nfc};
  EXPECT_NO_THROW(gguf_vocabulary_of(*make_bpe_tokenizer(spec)));
  spec.post_processor.after = {0};
  EXPECT_EQ(refusal(*make_bpe_tokenizer(spec)),
            "llama.cpp adds only bos before a text; this tokenizer's template adds other tokens");
}

// With byte tokens, which llama.cpp needs for unknown characters.
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

TEST(GgufVocabulary, PiecesRoundTripWithEveryType) {
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

TEST(GgufVocabulary, PiecesWithoutBytesAreRejected) {
  GgufVocabulary vocabulary = pieces_with_bytes();
  vocabulary.tokens.resize(6);
  vocabulary.types.resize(6);
  vocabulary.scores.resize(6);
  const auto tokenizer = tokenizer_from_gguf(vocabulary);
  EXPECT_EQ(message_of([&] { gguf_vocabulary_of(*tokenizer); }),
            "llama.cpp fails on unknown characters if a SentencePiece model has no byte tokens");
}

}  // namespace thimble
