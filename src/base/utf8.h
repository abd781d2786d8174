// UTF-8, one character at a time. Text may hold any bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace thimble {

struct Utf8Char {
  char32_t code = 0;  // the byte itself when not valid
  std::uint32_t bytes = 1;
  bool valid = false;
};

// The character at the start of [at, end), which is not empty. Overlong forms and surrogates are not valid.
Utf8Char decode_utf8(const char* at, const char* end);
void append_utf8(std::string& out, char32_t code);

// Characters from beginning to end, no byte that is not part of one.
bool is_utf8(std::string_view text);

// The first byte beyond ASCII, or `end`.
const char* skip_ascii(const char* at, const char* end);

// What stands in place of broken bytes: U+FFFD.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// How many bytes one U+FFFD stands for at the start of a text that does not start with a whole character, and whether
// more bytes could still make it one. (The "maximal subpart" of the Unicode standard, which is what browsers and
// Python replace.)
struct BrokenUtf8 {
  std::size_t bytes;
  bool may_grow;
};
BrokenUtf8 broken_utf8(std::string_view text);

}  // namespace thimble
