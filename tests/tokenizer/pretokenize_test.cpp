#include "tokenizer/pretokenize.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "base/rng.h"
#include "tokenizer/golden_tokenizers.h"
#include "tokenizer/regex.h"

namespace thimble {

namespace {

using Words = std::vector<std::string>;

Words scanned(Pattern pattern, std::string_view text) {
  Words words;
  for_each_word(pattern, text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

Words matched(const Regex& regex, std::string_view text) {
  Words words;
  std::size_t done = 0;
  regex.for_each_match(text, [&](std::size_t begin, std::size_t end) {
    if (begin > done) words.emplace_back(text.substr(done, begin - done));
    if (end > begin) words.emplace_back(text.substr(begin, end - begin));
    done = end;
  });
  if (done < text.size()) words.emplace_back(text.substr(done));
  return words;
}

// Characters of every class. Those with special treatment in the patterns are more frequent.
std::string random_text(Rng& rng, std::size_t characters) {
  static constexpr std::array<std::string_view, 48> kPieces = {
      " ",      " ",  " ",  "\n",      "\n",     "\r",         "\t",     "\u00A0", "\u3000", "\u0085",
      "\u180E", "'s", "'S", "'\u017F", "'ll",    "'L",         "'v",     "'",      "a",      "b",
      "z",      "A",  "Z",  "\u00E9",  "\u0391", "\u03B1",     "\u01C5", "\u02B0", "\u4E2D", "\u05D0",
      "0",      "7",  "1",  "\u0665",  "\u00BD", "\u2167",     "\u0301", "\u0903", "!",      ".",
      "/",      "/",  "-",  "_",       "\u2019", "\U0001F600", "\u200D", "\x01"};
  std::string text;
  for (std::size_t i = 0; i < characters; ++i) text += kPieces[rng.below(kPieces.size())];
  return text;
}

}  // namespace

class EveryPattern : public testing::TestWithParam<Pattern> {};

TEST_P(EveryPattern, MatchesItsRegularExpressionOnRandomText) {
  const Regex regex(pattern_regex(GetParam()));
  Rng rng(7);
  for (int i = 0; i < 30'000; ++i) {
    const std::string text = random_text(rng, 1 + rng.below(24));
    ASSERT_EQ(scanned(GetParam(), text), matched(regex, text)) << "[" << text << "]";
  }
}

TEST_P(EveryPattern, MatchesItsRegularExpressionOnTheCorpora) {
  const Regex regex(pattern_regex(GetParam()));
  for (const std::filesystem::path& file : corpus_files()) {
    const std::string text = read_text_file(file);
    ASSERT_EQ(scanned(GetParam(), text), matched(regex, text)) << file;
  }
}

TEST_P(EveryPattern, InvalidUtf8IsKept) {
  Rng rng(8);
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (std::uint64_t length = rng.below(20); length > 0; --length)
      text += static_cast<char>(rng.below(256));
    std::string joined;
    for (const std::string& word : scanned(GetParam(), text)) {
      ASSERT_FALSE(word.empty());
      joined += word;
    }
    ASSERT_EQ(joined, text);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryPattern,
                         testing::Values(Pattern::gpt2, Pattern::llama3, Pattern::qwen2, Pattern::o200k),
                         [](const auto& info) { return std::string(pattern_name(info.param)); });

TEST(Unicode, ClassesMatchPcre2ForCharactersAssignedInBoth) {
  // The text contains every character once. Each expression must match exactly its class.
  std::string text;
  std::vector<char32_t> code_at;  // by byte offset
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    const std::size_t before = text.size();
    append_utf8(text, code);
    code_at.resize(text.size(), code);
    code_at[before] = code;
  }
  const std::vector<std::pair<CharClass, const char*>> classes = {
      {kUpper, R"([\p{Lu}\p{Lt}])"}, {kLower, R"(\p{Ll})"}, {kCaseless, R"([\p{Lm}\p{Lo}])"},
      {kMark, R"(\p{M})"},           {kNumber, R"(\p{N})"}, {kSpaces, R"(\s)"},
  };
  std::vector<CharClass> theirs(0x110000, kOther);
  for (const auto& [cls, expression] : classes)
    Regex(expression).for_each_match(text, [&](std::size_t begin, std::size_t) {
      theirs[code_at[begin]] = cls;
    });
  std::set<char32_t> unassigned;
  Regex(R"(\p{Cn})").for_each_match(text, [&](std::size_t begin, std::size_t) {
    unassigned.insert(code_at[begin]);
  });
  std::size_t newer = 0;
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    const bool same = theirs[code] == kSpaces ? (class_of(code) & kSpaces) : class_of(code) == theirs[code];
    if (!same && unassigned.contains(code)) ++newer;
    EXPECT_TRUE(same || unassigned.contains(code)) << "U+" << std::hex << static_cast<std::uint32_t>(code);
  }
  RecordProperty("characters_unknown_to_pcre2", static_cast<int>(newer));
  EXPECT_LT(newer, 6000u);  // at most about two Unicode versions of difference
}

TEST(Unicode, OverlongFormsSurrogatesAndTruncatedCharactersAreInvalid) {
  for (const std::string_view bad :
       {"\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82", "\x80", "\xFF"})
    EXPECT_FALSE(decode_utf8(bad.data(), bad.data() + bad.size()).valid) << bad;
  const std::string_view euro = "\xE2\x82\xAC";
  const Utf8Char c = decode_utf8(euro.data(), euro.data() + 3);
  EXPECT_TRUE(c.valid);
  EXPECT_EQ(c.code, U'\u20AC');
}

TEST(Regex, CompileErrorQuotesThePattern) {
  try {
    Regex("(abc");
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_TRUE(std::string_view(error.what()).starts_with("invalid regular expression \"(abc\""));
  }
}

TEST(Regex, HostilePatternIsAnErrorAndDoesNotHang) {
  const Regex regex("(a+)+$");
  std::string text(60, 'a');
  text.push_back('b');
  EXPECT_THROW(regex.for_each_match(text, [](std::size_t, std::size_t) {}), std::exception);
}

}  // namespace thimble
