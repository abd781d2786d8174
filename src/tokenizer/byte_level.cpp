#include "tokenizer/byte_level.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "tokenizer/unicode.h"

namespace thimble {

namespace {

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char32_t, 256> kChars = [] {
  std::array<char32_t, 256> chars{};
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) chars[byte] = stands_for_itself(byte) ? byte : next++;
  return chars;
}();

constexpr std::array<std::int16_t, 0x144> kBytes = [] {
  std::array<std::int16_t, 0x144> bytes{};
  for (auto& byte : bytes) byte = -1;
  for (unsigned byte = 0; byte < 256; ++byte) bytes[kChars[byte]] = static_cast<std::int16_t>(byte);
  return bytes;
}();

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

char32_t byte_level_char(unsigned char byte) {
  return kChars[byte];
}

std::string byte_level_text(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) append_utf8(text, kChars[static_cast<unsigned char>(byte)]);
  return text;
}

std::optional<std::string> byte_level_bytes(std::string_view text) {
  std::string bytes;
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const Utf8Char c = decode_utf8(p, end);
    if (!c.valid || c.code >= kBytes.size() || kBytes[c.code] < 0) return std::nullopt;
    bytes += static_cast<char>(kBytes[c.code]);
    p += c.bytes;
  }
  return bytes;
}

std::array<unsigned char, 256> byte_level_alphabet() {
  std::array<unsigned char, 256> bytes{};
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
  std::sort(bytes.begin(), bytes.end(),
            [](unsigned char a, unsigned char b) { return kChars[a] < kChars[b]; });
  return bytes;
}

std::string byte_token(unsigned char byte) {
  return fmt::format("<0x{:02X}>", byte);
}

std::optional<unsigned char> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const int high = hex_digit(token[3]), low = hex_digit(token[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<unsigned char>(high * 16 + low);
}

}  // namespace thimble
