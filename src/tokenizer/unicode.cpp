#include "tokenizer/unicode.h"

#include <fmt/core.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/text.h"

namespace thimble {

namespace {

constexpr char32_t kCodePoints = 0x110000;
constexpr std::size_t kPageSize = 256;

bool is_white_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

CharClass class_from_category(utf8proc_category_t category) {
  switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return kUpper;
    case UTF8PROC_CATEGORY_LL:
      return kLower;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kCaseless;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return kMark;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return kNumber;
    default:
      return kOther;
  }
}

CharClass look_up_class(char32_t code) {
  if (code == '\r' || code == '\n') return kNewline;
  if (is_white_space(code)) return kBlank;
  return class_from_category(utf8proc_category(static_cast<utf8proc_int32_t>(code)));
}

// Hangul letters are combined into syllables by rule, not by table.
bool is_hangul_letter(char32_t code) {
  return (code >= 0x1100 && code <= 0x11FF) || (code >= 0xA960 && code <= 0xA97F) ||
         (code >= 0xD7B0 && code <= 0xD7FF);
}

// A character that combines with the one before it is a mark or Hangul. Any other character without
// a canonical decomposition is unchanged by NFC.
bool look_up_inert(char32_t code) {
  if (code < 0x300) return true;
  const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(code));
  const bool decomposes = property->decomp_seqindex != UINT16_MAX && property->decomp_type == 0;
  return !decomposes && property->combining_class == 0 && look_up_class(code) != kMark &&
         !is_hangul_letter(code);
}

// A two-level table, because most of the 4352 pages are identical. Building it takes a few
// milliseconds, so that happens on first use.
class CharTable {
 public:
  CharTable() {
    std::vector<std::uint16_t> entries(kPageSize);
    for (std::size_t page = 0; page < pages_.size(); ++page) {
      for (std::size_t i = 0; i < kPageSize; ++i) {
        const auto code = static_cast<char32_t>(page * kPageSize + i);
        entries[i] = static_cast<std::uint16_t>(look_up_class(code) | (look_up_inert(code) ? kInert : 0));
      }
      pages_[page] = place_of(entries);
    }
  }

  std::uint16_t operator[](char32_t code) const {
    return entries_[pages_[code / kPageSize] * kPageSize + code % kPageSize];
  }

  static constexpr std::uint16_t kInert = 256;

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
  if (class_of(code) & (kLetters | kMark)) return true;
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_PC;
}

bool is_inert_under_nfc(char32_t code) {
  return char_table()[code] & CharTable::kInert;
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
