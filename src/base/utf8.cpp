#include "base/utf8.h"

#include <array>
#include <cstring>

namespace thimble {

Utf8Char decode_utf8(const char* at, const char* end) {
  auto byte = [&](std::ptrdiff_t i) { return static_cast<unsigned char>(at[i]); };
  const char32_t lead = byte(0);
  const std::ptrdiff_t room = end - at;
  if (lead < 0x80) return {lead, 1, true};
  if (lead < 0xC2 || lead > 0xF4) return {lead, 1, false};
  const std::ptrdiff_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (room < length) return {lead, 1, false};
  for (std::ptrdiff_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return {lead, 1, false};
  char32_t code = lead & (0xFFu >> (length + 1));
  for (std::ptrdiff_t i = 1; i < length; ++i) code = code << 6 | (byte(i) & 0x3Fu);
  constexpr std::array<char32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < kLeast[static_cast<std::size_t>(length)] || surrogate || code > 0x10FFFF)
    return {lead, 1, false};
  return {code, static_cast<std::uint32_t>(length), true};
}

void append_utf8(std::string& out, char32_t code) {
  auto tail = [&](int shift) { out += static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

bool is_utf8(std::string_view text) {
  const char *at = text.data(), *end = at + text.size();
  while ((at = skip_ascii(at, end)) != end) {
    const Utf8Char character = decode_utf8(at, end);
    if (!character.valid) return false;
    at += character.bytes;
  }
  return true;
}

std::size_t character_count(std::string_view text) {
  std::size_t count = 0;
  for (const char *at = text.data(), *end = at + text.size(); at != end; ++count)
    at += decode_utf8(at, end).bytes;
  return count;
}

const char* skip_ascii(const char* at, const char* end) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080u;
  for (std::uint64_t eight; end - at >= 8; at += 8) {
    std::memcpy(&eight, at, 8);
    if (eight & kHighBits) break;
  }
  while (at < end && static_cast<signed char>(*at) >= 0) ++at;
  return at;
}

BrokenUtf8 broken_utf8(std::string_view text) {
  auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  const std::size_t length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0) return {1, false};
  if (text.size() == 1) return {1, true};
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return {1, false};
  std::size_t good = 2;
  while (good < text.size() && good < length && (byte(good) & 0xC0) == 0x80) ++good;
  return {good, good == text.size()};
}

}  // namespace thimble
