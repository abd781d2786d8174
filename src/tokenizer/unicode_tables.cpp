// What tokenizers need of utf8proc's tables.
#include <utf8proc.h>

#include <vector>

#include "base/error.h"
#include "tokenizer/unicode.h"

namespace thimble {

namespace {

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

bool look_up_word(char32_t code) {
  if (look_up_class(code) & (kLetters | kMark)) return true;
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_PC;
}

utf8proc_option_t options_of(UnicodeForm form) {
  int options = UTF8PROC_STABLE;
  options |= form == UnicodeForm::nfc || form == UnicodeForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::nfkc || form == UnicodeForm::nfkd) options |= UTF8PROC_COMPAT;
  return static_cast<utf8proc_option_t>(options);
}

}  // namespace

void read_char_properties(char32_t first, std::span<std::uint16_t> properties) {
  for (std::uint16_t& entry : properties) {
    entry = static_cast<std::uint16_t>(look_up_class(first) | (look_up_inert(first) ? kInert : 0) |
                                       (look_up_word(first) ? kWord : 0));
    ++first;
  }
}

char32_t lower_case(char32_t code) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
}

char32_t upper_case(char32_t code) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code)));
}

void append_normalized(std::string_view text, UnicodeForm form, std::string& out) {
  const utf8proc_option_t options = options_of(form);
  std::vector<utf8proc_int32_t> codes(text.size() * 4 + 16);
  auto decompose = [&] {
    return utf8proc_decompose(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                              static_cast<utf8proc_ssize_t>(text.size()), codes.data(),
                              static_cast<utf8proc_ssize_t>(codes.size()), options);
  };
  utf8proc_ssize_t count = decompose();
  if (count > static_cast<utf8proc_ssize_t>(codes.size())) {
    codes.resize(static_cast<std::size_t>(count));
    count = decompose();
  }
  if (count >= 0) count = utf8proc_normalize_utf32(codes.data(), count, options);
  check(count >= 0, "normalizing {} bytes failed: {}", text.size(), utf8proc_errmsg(count));
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    append_utf8(out, static_cast<char32_t>(codes[static_cast<std::size_t>(i)]));
}

}  // namespace thimble
