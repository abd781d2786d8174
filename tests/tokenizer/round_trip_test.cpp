// Encoding followed by decoding returns the original text.
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "base/rng.h"
#include "support/temp_folder.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/bpe_tokenizer.h"
#include "tokenizer/bpe_train.h"
#include "tokenizer/golden_tokenizers.h"
#include "tokenizer/normalize.h"
#include "tokenizer/unicode.h"

namespace thimble {

namespace {

std::unique_ptr<Tokenizer> trained_on(const std::string& text) {
  TempFolder folder;
  TextSource source({folder.write("a.txt", text)}, {});
  return make_bpe_tokenizer(train_bpe(source, {.vocab_size = 600}, ProgressOutput::nowhere()).spec);
}

std::unique_ptr<Tokenizer> trained_on_words() {
  std::string text;
  for (int i = 0; i < 2000; ++i)
    text += fmt::format("the {} cats saw it's {} \u00E9t\u00E9 \u4E2D\u6587\n", i % 97, i);
  return trained_on(text);
}

}  // namespace

TEST(RoundTrip, AMillionRandomByteStrings) {
  const auto trained = trained_on_words(), bytes = load_tokenizer("bytes");
  Rng rng(1);
  std::string text;
  std::vector<TokenId> ids;
  for (int i = 0; i < 1'000'000; ++i) {
    text.clear();
    // Half of the texts consist of frequent characters, so that merges happen.
    for (std::uint64_t length = rng.below(12); length > 0; --length)
      text += i % 2 ? static_cast<char>(rng.below(256)) : "the cats\xC3\xA9\n'0"[rng.below(14)];
    for (const auto* tokenizer : {trained.get(), bytes.get()}) {
      ids.clear();
      tokenizer->encode(text, ids, {});
      ASSERT_EQ(tokenizer->decode(ids), text);
    }
  }
}

void expect_every_corpus_decodes_to_itself(const Tokenizer& tokenizer, bool normalizes) {
  const Normalizer nfc({UnicodeForm::nfc});
  for (const std::filesystem::path& file : corpus_files()) {
    const std::string text = read_text_file(file);
    std::string buffer;
    const std::string_view expected = normalizes ? nfc.apply(text, buffer) : text;
    ASSERT_TRUE(tokenizer.decode(tokenizer.encode(text)) == expected) << file;
  }
}

TEST(RoundTrip, EveryCorpusDecodesToItselfWithTrainedTokenizersAndBytes) {
  expect_every_corpus_decodes_to_itself(*trained_on_words(), false);
  expect_every_corpus_decodes_to_itself(*load_tokenizer("bytes"), false);
}

class RoundTripOf : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(RoundTripOf, EveryCorpusDecodesToItself) {
  expect_every_corpus_decodes_to_itself(*tokenizer_in(GetParam()), normalizes_to_nfc(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, RoundTripOf, testing::ValuesIn(bpe_files()),
                         [](const auto& info) { return name_of_file(info.param); });

// Reference implementation: merge the best pair, leftmost first, until none is left.
std::vector<TokenId> reference_merge(const Tokenizer& tokenizer, std::string_view word) {
  const BpeSpec& spec = static_cast<const BpeTokenizer&>(tokenizer).spec();
  std::map<std::pair<TokenId, TokenId>, std::size_t> ranks;
  for (std::size_t rank = 0; rank < spec.merges.size(); ++rank)
    ranks[{spec.merges[rank].left, spec.merges[rank].right}] = rank;
  std::vector<TokenId> ids;
  for (const char c : word) ids.push_back(tokenizer.id_of(std::string(1, c)).value());
  while (true) {
    std::size_t best = spec.merges.size(), at = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({ids[i], ids[i + 1]});
      if (found == ranks.end() || found->second >= best) continue;
      best = found->second;
      at = i;
    }
    if (best == spec.merges.size()) return ids;
    ids[at] = spec.merges[best].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

// Up to 48 symbols are scanned for the best pair, longer words use a heap. Runs of one letter
// contain equal pairs and test which one is merged first.
TEST(RoundTrip, ShortAndLongWordsMatchTheReference) {
  const auto tokenizer = trained_on("aa aa aaa aaaa aab aab abab abb aaaaaaa baa baa aa aab bb bba abba");
  Rng rng(3);
  for (int i = 0; i < 400; ++i) {
    std::string word;
    for (std::uint64_t letters = 1 + rng.below(120); letters > 0; --letters) word += "aaab"[rng.below(4)];
    ASSERT_EQ(tokenizer->encode(word), reference_merge(*tokenizer, word)) << word;
  }
}

TEST(RoundTrip, TooLongAWordIsAnError) {
  const auto tokenizer = trained_on_words();
  const std::string text(BpeModel::kMaxWordBytes + 1, 'a');
  try {
    tokenizer->encode(text);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "cannot encode a word of 16777217 bytes: the limit is 16777216");
  }
}

TEST(RoundTrip, ManyThreadsGiveTheSameIds) {
  const auto tokenizer = trained_on_words();
  std::vector<std::string> texts;
  for (int i = 0; i < 500; ++i) texts.push_back(fmt::format("the cats {} saw {}", i, i * i));
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const auto all = encode_all(*tokenizer, views);
  for (std::size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(all[i], tokenizer->encode(texts[i]));
}

TEST(Normalizer, NormalizesToTheUnicodeForms) {
  auto apply = [](UnicodeForm form, std::string_view text) {
    std::string buffer;
    return std::string(Normalizer({form}).apply(text, buffer));
  };
  EXPECT_EQ(apply(UnicodeForm::nfc, "e\u0301 A\u030A \u1112\u1161\u11AB \u212B"),
            "\u00E9 \u00C5 \uD55C \u00C5");
  EXPECT_EQ(apply(UnicodeForm::nfd, "\u00E9\uD55C"), "e\u0301\u1112\u1161\u11AB");
  EXPECT_EQ(apply(UnicodeForm::nfkc, "\uFB01 \u00BD\u00A0x"), "fi 1\u20442 x");
  EXPECT_EQ(apply(UnicodeForm::nfkd, "\uFB01\u00E9"), "fie\u0301");
  EXPECT_EQ(apply(UnicodeForm::nfc, "q\u0307\u0323"), "q\u0323\u0307");  // reordering only
  EXPECT_EQ(apply(UnicodeForm::nfc,
                  "a\xFF"
                  "e\u0301"),
            "a\xFF\u00E9");  // invalid bytes are kept
  EXPECT_EQ(apply(UnicodeForm::nfc, "\u09C7\u09BE"), "\u09CB");
}

TEST(Normalizer, StepsRunInOrder) {
  std::string buffer;
  const Normalizer steps(
      {Lowercase{}, Prepend{"_"}, Replace{{" ", false}, "_"}, Replace{{"[0-9]+", true}, "#"}});
  EXPECT_EQ(steps.apply("A\u0130 B12", buffer), "_ai\u0307_b#");
  EXPECT_EQ(steps.apply("", buffer), "");
}

TEST(Normalizer, InertCharactersAreUnchangedByNfc) {
  // NFC skips characters with is_inert_under_nfc(). The library must not change any of them.
  std::string a, b, c;
  for (char32_t code = 0x80; code < 0x110000; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    if (!is_inert_under_nfc(code)) continue;
    std::string text = "e";
    append_utf8(text, code);
    text += "e";
    const std::string forced = [&] {  // the mark disables the shortcut
      std::string with_mark = text.substr(0, text.size() - 1) + "\u0334";
      std::string out(Normalizer({UnicodeForm::nfc}).apply(with_mark, a));
      return out;
    }();
    ASSERT_TRUE(forced.starts_with(text.substr(0, text.size() - 1)))
        << std::hex << static_cast<std::uint32_t>(code);
  }
}

}  // namespace thimble
