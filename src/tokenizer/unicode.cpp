#include "tokenizer/unicode.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/text.h"

namespace thimble {

namespace {

constexpr char32_t kCodePoints = 0x110000;
constexpr std::size_t kPageSize = 256;

// A two-level table, because most of the 4352 pages are identical. Building it takes a few
// milliseconds, so that happens on first use.
class CharTable {
 public:
  CharTable() {
    std::vector<std::uint16_t> entries(kPageSize);
    for (std::size_t page = 0; page < pages_.size(); ++page) {
      read_char_properties(static_cast<char32_t>(page * kPageSize), entries);
      pages_[page] = place_of(entries);
    }
  }

  std::uint16_t operator[](char32_t code) const {
    return entries_[pages_[code / kPageSize] * kPageSize + code % kPageSize];
  }

 private:
  std::uint16_t place_of(const std::vector<std::uint16_t>& page) {
    for (std::size_t at = 0; at < entries_.size(); at += kPageSize)
      if (std::equal(page.begin(), page.end(), entries_.begin() + static_cast<std::ptrdiff_t>(at)))
        return static_cast<std::uint16_t>(at / kPageSize);
    entries_.insert(entries_.end(), page.begin(), page.end());
    return static_cast<std::uint16_t>(entries_.size() / kPageSize - 1);
  }

  std::array<std::uint16_t, kCodePoints / kPageSize> pages_{};
  std::vector<std::uint16_t> entries_;
};

const CharTable& char_table() {
  static const CharTable table;
  return table;
}

}  // namespace

CharClass class_of(char32_t code) {
  return static_cast<CharClass>(char_table()[code]);
}

bool is_word_character(char32_t code) {
  return char_table()[code] & kWord;
}

bool is_inert_under_nfc(char32_t code) {
  return char_table()[code] & kInert;
}

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

std::size_t character_boundary(std::string_view text, std::size_t at) {
  std::size_t cut = at;
  while (cut > 0 && at - cut < 4 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return cut == 0 ? at : cut;
}

std::size_t safe_cut(std::string_view text, std::size_t from, std::size_t at) {
  for (std::size_t i = std::min(at, text.size() - 1); i > from + 1; --i) {
    const char next = text[i];
    const bool letter = is_ascii_alnum(next) && !(next >= '0' && next <= '9');
    if (letter && text[i - 1] == ' ' && is_ascii_alnum(text[i - 2])) return i - 1;
  }
  return 0;
}

}  // namespace thimble
