#include "base/utf8.h"

namespace thimble::utf8_test {
namespace {

TEST(Utf8, EveryCodePointRoundTrips) {
  std::string text;
  for (char32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    text.clear();
    append_utf8(text, code);
    const Utf8Char read = decode_utf8(text.data(), text.data() + text.size());
    ASSERT_TRUE(read.valid && read.code == code && read.bytes == text.size()) << static_cast<unsigned>(code);
  }
}

TEST(Utf8, CharactersAreCodePointsOfAnyWidth) {
  EXPECT_EQ(character_count(""), 0u);
  EXPECT_EQ(character_count("你好 é"), 4u);
  EXPECT_EQ(character_count("a\xFF\xC3"), 3u);
}

TEST(Utf8, InvalidSequencesDecodeAsOneByte) {
  for (const std::string text :
       {"\x80", "\xC1\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xC3", "\xF0\x9F\x98"}) {
    const Utf8Char read = decode_utf8(text.data(), text.data() + text.size());
    EXPECT_FALSE(read.valid);
    EXPECT_EQ(read.bytes, 1u);
    EXPECT_EQ(read.code, static_cast<unsigned char>(text[0]));
    EXPECT_FALSE(is_utf8("text " + text));
  }
  EXPECT_TRUE(is_utf8("na\xC3\xAFve \xF0\x9F\x98\x80"));
}

TEST(Utf8, InvalidSequencesHaveTheLengthOfTheUnicodeStandard) {
  const auto broken = [](std::string_view text) {
    const BrokenUtf8 piece = broken_utf8(text);
    return fmt::format("{}{}", piece.bytes, piece.may_grow ? "+" : "");
  };
  EXPECT_EQ(broken("\x80"), "1");
  EXPECT_EQ(broken("\xC3"), "1+");
  EXPECT_EQ(broken("\xC3x"), "1");
  EXPECT_EQ(broken("\xE2\x82"), "2+");
  EXPECT_EQ(broken("\xE2\x82x"), "2");
  EXPECT_EQ(broken("\xE0\x80\x80"), "1");  // overlong, detected at the second byte
  EXPECT_EQ(broken("\xED\xA0\x80"), "1");  // a surrogate
  EXPECT_EQ(broken("\xF0\x9F\x98"), "3+");
  EXPECT_EQ(broken("\xF4\x90\x80\x80"), "1");  // beyond U+10FFFF
}

}  // namespace
}  // namespace thimble::utf8_test
