// The character properties that the pre-tokenizers need.
//
// A class is one bit, so a set of classes is a mask and scanning a run takes one test per
// character. Text may contain any bytes: each byte that is not part of a valid character is one
// character of class kOther.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"

namespace thimble {

using CharClass = std::uint8_t;

inline constexpr CharClass kOther = 1;      // punctuation, symbols, controls, invalid bytes, ...
inline constexpr CharClass kMark = 2;       // \p{M}
inline constexpr CharClass kUpper = 4;      // \p{Lu} \p{Lt}
inline constexpr CharClass kLower = 8;      // \p{Ll}
inline constexpr CharClass kCaseless = 16;  // \p{Lm} \p{Lo}
inline constexpr CharClass kNumber = 32;    // \p{N}
inline constexpr CharClass kBlank = 64;     // White_Space, but not CR or LF
inline constexpr CharClass kNewline = 128;  // CR LF

inline constexpr CharClass kLetters = kUpper | kLower | kCaseless;
inline constexpr CharClass kSpaces = kBlank | kNewline;
inline constexpr CharClass kPunctuation = kOther | kMark;  // [^\s\p{L}\p{N}]

CharClass class_of(char32_t code);

// \w: letters, marks, digits and connectors.
bool is_word_character(char32_t code);

// Whether NFC can neither change this character nor combine it with an adjacent one.
bool is_inert_under_nfc(char32_t code);

// The functions below come from utf8proc (unicode_tables.cpp). The browser's runtime has its own
// (src/wasm/browser.cpp), because utf8proc's tables would be a sixth of it.

// Properties of a character: its CharClass and these bits.
inline constexpr std::uint16_t kInert = 256;  // is_inert_under_nfc()
inline constexpr std::uint16_t kWord = 512;   // is_word_character()

// Properties of the characters from `first` on.
void read_char_properties(char32_t first, std::span<std::uint16_t> properties);

// The character that Unicode's simple mapping assigns; the character itself if there is none.
char32_t lower_case(char32_t code);
char32_t upper_case(char32_t code);

enum class UnicodeForm { nfc, nfd, nfkc, nfkd };

// Appends `text`, which must be valid UTF-8, in this form.
void append_normalized(std::string_view text, UnicodeForm form, std::string& out);

namespace detail {

constexpr std::array<CharClass, 128> ascii_classes() {
  std::array<CharClass, 128> table{};
  for (int c = 0; c < 128; ++c) {
    CharClass cls = kOther;
    if (c >= 'A' && c <= 'Z') cls = kUpper;
    if (c >= 'a' && c <= 'z') cls = kLower;
    if (c >= '0' && c <= '9') cls = kNumber;
    if (c == ' ' || c == '\t' || c == '\v' || c == '\f') cls = kBlank;
    if (c == '\r' || c == '\n') cls = kNewline;
    table[static_cast<std::size_t>(c)] = cls;
  }
  return table;
}
inline constexpr auto kAsciiClasses = ascii_classes();

}  // namespace detail

struct ClassedChar {
  CharClass cls;
  std::uint32_t bytes;
};

// Class and length of the character at `at`, with a fast path for ASCII.
inline ClassedChar classed_char(const char* at, const char* end) {
  const auto byte = static_cast<unsigned char>(*at);
  if (byte < 0x80) [[likely]]
    return {detail::kAsciiClasses[byte], 1};
  const Utf8Char character = decode_utf8(at, end);
  return {character.valid ? class_of(character.code) : kOther, character.bytes};
}

// GPT-2's encoding of bytes as printable characters: printable Latin-1 characters represent
// themselves, the others are mapped to U+0100 and up ("Ġ" is a space). Returns the character for a
// byte.
char32_t byte_level_char(unsigned char byte);
std::string byte_level_text(std::string_view bytes);
// Decodes to bytes; nullopt if a character does not represent a byte.
std::optional<std::string> byte_level_bytes(std::string_view text);

// The 256 bytes ordered by their characters, as in every byte-level vocabulary.
std::array<unsigned char, 256> byte_level_alphabet();

// "<0x0A>", the spelling of bytes in vocabularies with byte fallback, and its inverse.
std::string byte_token(unsigned char byte);
std::optional<unsigned char> byte_of_token(std::string_view token);

// Finds a place where every supported split pattern has a word boundary: before a space between a
// letter or digit and a letter, all ASCII. Searches backward from `at`; returns 0 if there is no
// such place after `from`.
std::size_t safe_cut(std::string_view text, std::size_t from, std::size_t at);

// The end of the last complete character at or before `at`, which must be inside the text.
std::size_t character_boundary(std::string_view text, std::size_t at);

}  // namespace thimble
