// UTF-8, one character at a time. Input may contain any bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace thimble {

struct Utf8Char {
  char32_t code = 0;  // the first byte if not valid
  std::uint32_t bytes = 1;
  bool valid = false;
};

// Decodes the character at the start of [at, end), which must not be empty. Overlong forms and
// surrogates are invalid.
Utf8Char decode_utf8(const char* at, const char* end);
void append_utf8(std::string& out, char32_t code);

// Whether the text is valid UTF-8 throughout.
bool is_utf8(std::string_view text);

// The number of characters (code points); each byte that belongs to none counts as one.
std::size_t character_count(std::string_view text);

// The first non-ASCII byte, or `end`.
const char* skip_ascii(const char* at, const char* end);

// U+FFFD, which replaces invalid bytes.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// For a text that does not start with a complete character: the number of bytes that one U+FFFD
// replaces, and whether more bytes could complete the character. (The "maximal subpart" of the
// Unicode standard, which browsers and Python replace.)
struct BrokenUtf8 {
  std::size_t bytes;
  bool may_grow;
};
BrokenUtf8 broken_utf8(std::string_view text);

}  // namespace thimble
