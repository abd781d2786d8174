// The pre-tokenizer of tokenizer.json: splits normalized text into words that merges do not cross.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/regex.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/unicode.h"

namespace thimble {

// The four split patterns in wide use. Each has a hand-written scanner that is about twenty times
// as fast as its regular expression and is tested to be equivalent to it.
enum class Pattern { gpt2, llama3, qwen2, o200k };

std::string_view pattern_name(Pattern pattern);
std::string_view pattern_regex(Pattern pattern);
std::optional<Pattern> pattern_with_name(std::string_view name);
std::optional<Pattern> pattern_with_regex(std::string_view regex);

namespace detail {

// Character access for the scanners. Past the end there is a character without any class.
struct Scan {
  const char* end;

  ClassedChar at(const char* p) const { return p < end ? classed_char(p, end) : ClassedChar{0, 0}; }

  const char* run(const char* p, CharClass mask) const {
    while (p < end) {
      const ClassedChar c = classed_char(p, end);
      if (!(c.cls & mask)) break;
      p += c.bytes;
    }
    return p;
  }

  const char* run_at_most(const char* p, CharClass mask, int limit) const {
    for (int i = 0; i < limit; ++i) {
      const ClassedChar c = at(p);
      if (!(c.cls & mask)) break;
      p += c.bytes;
    }
    return p;
  }

  char byte(const char* p) const { return p < end ? *p : '\0'; }
};

// The end of 's 't 're 've 'm 'll 'd at `p`, or `p` if there is none. With any_case, U+017F counts
// as an s.
template <bool any_case>
const char* contraction_end(const Scan& scan, const char* p) {
  if (scan.byte(p) != '\'') return p;
  auto letter = [&](const char* q) {
    const char c = scan.byte(q);
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char first = letter(p + 1), second = first ? letter(p + 2) : '\0';
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return p + 2;
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
    return p + 3;
  if (any_case && first == '\xC5' && second == '\xBF') return p + 3;
  return p;
}

// \s+(?!\S)|\s+ at a white space: the complete run at the end of the text, otherwise all but its
// last character, which belongs to the next word.
inline const char* spaces_end(const Scan& scan, const char* p) {
  const char* last = p;
  const char* q = p;
  while (q < scan.end) {
    const ClassedChar c = classed_char(q, scan.end);
    if (!(c.cls & kSpaces)) break;
    last = q;
    q += c.bytes;
  }
  return q == scan.end || last == p ? q : last;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ at a white space: up to the last line end of the run, if it has one.
inline const char* lines_end(const Scan& scan, const char* p) {
  const char* newline_end = nullptr;
  for (const char* q = p; q < scan.end;) {
    const ClassedChar c = classed_char(q, scan.end);
    if (!(c.cls & kSpaces)) break;
    q += c.bytes;
    if (c.cls & kNewline) newline_end = q;
  }
  return newline_end ? newline_end : spaces_end(scan, p);
}

struct Gpt2Words {
  static const char* word_end(const Scan& scan, const char* p) {
    if (*p == '\'') {
      if (const char* end = contraction_end<false>(scan, p); end != p) return end;
    }
    const ClassedChar first = scan.at(p);
    const bool blank = *p == ' ';
    const char* start = blank ? p + 1 : p;
    const ClassedChar c = blank ? scan.at(start) : first;
    for (const CharClass mask : {kLetters, kNumber, kPunctuation})
      if (c.cls & mask) return scan.run(start + c.bytes, mask);
    return spaces_end(scan, p);
  }
};

// The pattern introduced by cl100k: Llama 3 groups up to three digits, Qwen2 takes one.
template <int digits>
struct Cl100kWords {
  static const char* word_end(const Scan& scan, const char* p) {
    if (*p == '\'') {
      if (const char* end = contraction_end<true>(scan, p); end != p) return end;
    }
    const ClassedChar c = scan.at(p);
    if (c.cls & kLetters) return scan.run(p + c.bytes, kLetters);
    if (c.cls & kNumber) return scan.run_at_most(p, kNumber, digits);
    const ClassedChar next = scan.at(p + c.bytes);
    if (!(c.cls & kNewline) && (next.cls & kLetters)) return scan.run(p + c.bytes + next.bytes, kLetters);
    if ((c.cls & kPunctuation) || (*p == ' ' && (next.cls & kPunctuation)))
      return scan.run(scan.run(p + c.bytes, kPunctuation), kNewline);
    return lines_end(scan, p);
  }
};

struct O200kWords {
  static constexpr CharClass kHead = kUpper | kCaseless | kMark;
  static constexpr CharClass kTail = kLower | kCaseless | kMark;

  // The end of [head]*[tail]+ at p, or p if it does not match. If no lower-case letter follows the
  // head, the match backtracks to the last character that can also be a tail.
  static const char* head_then_tail(const Scan& scan, const char* p) {
    const char* after_last_shared = p;
    const char* q = p;
    ClassedChar c = scan.at(q);
    while (c.cls & kHead) {
      q += c.bytes;
      if (c.cls & kTail) after_last_shared = q;
      c = scan.at(q);
    }
    return c.cls & kLower ? scan.run(q, kTail) : after_last_shared;
  }

  // The end of a letter run with an optional leading character, or p if there is none.
  static const char* letters_end(const Scan& scan, const char* p) {
    const ClassedChar c = scan.at(p);
    const bool may_lead = !(c.cls & (kNewline | kLetters | kNumber));
    const char* after = p + c.bytes;
    if (may_lead)
      if (const char* end = head_then_tail(scan, after); end != after) return end;
    if (const char* end = head_then_tail(scan, p); end != p) return end;
    if (may_lead)
      if (const char* end = scan.run(after, kHead); end != after) return end;
    return scan.run(p, kHead);
  }

  static const char* word_end(const Scan& scan, const char* p) {
    if (const char* end = letters_end(scan, p); end != p) return contraction_end<true>(scan, end);
    const ClassedChar c = scan.at(p);
    if (c.cls & kNumber) return scan.run_at_most(p, kNumber, 3);
    const ClassedChar next = scan.at(p + c.bytes);
    if ((c.cls & kPunctuation) || (*p == ' ' && (next.cls & kPunctuation))) {
      const char* end = scan.run(p + c.bytes, kPunctuation);
      while (end < scan.end && (*end == '\r' || *end == '\n' || *end == '/')) ++end;
      return end;
    }
    return lines_end(scan, p);
  }
};

template <class Words, class Use>
void scan_words(std::string_view text, Use& use) {
  const Scan scan{text.data() + text.size()};
  for (const char* p = text.data(); p < scan.end;) {
    const char* end = Words::word_end(scan, p);
    use(std::string_view(p, static_cast<std::size_t>(end - p)));
    p = end;
  }
}

}  // namespace detail

// Calls use(word) for each word. The words cover the text without gaps.
template <class Use>
void for_each_word(Pattern pattern, std::string_view text, Use&& use) {
  switch (pattern) {
    case Pattern::gpt2:
      return detail::scan_words<detail::Gpt2Words>(text, use);
    case Pattern::llama3:
      return detail::scan_words<detail::Cl100kWords<3>>(text, use);
    case Pattern::qwen2:
      return detail::scan_words<detail::Cl100kWords<1>>(text, use);
    case Pattern::o200k:
      return detail::scan_words<detail::O200kWords>(text, use);
  }
}

class PreTokenizer {
 public:
  explicit PreTokenizer(const std::vector<PreTokenizerStep>& steps);

  // Calls use(word) for each non-empty word. A word is valid only during the call.
  template <class Use>
  void for_each(std::string_view text, Use&& use) const {
    if (pattern_) return for_each_word(*pattern_, text, use);
    Pieces pieces = split(text);
    for (const std::string_view piece : pieces.views)
      if (!piece.empty()) use(piece);
  }

  // Set if one hand-written scanner does all of the splitting.
  std::optional<Pattern> pattern() const { return pattern_; }

 private:
  struct Step {
    PreTokenizerStep step;
    std::shared_ptr<const Regex> regex;  // for a Split without a scanner
    std::optional<Pattern> pattern;      // for a Split or ByteLevel with a scanner
  };
  struct Pieces {
    std::vector<std::string_view> views;
    std::vector<std::unique_ptr<std::string>> owned;  // copies with a prefix space added
  };

  Pieces split(std::string_view text) const;
  static void run(const Step& step, std::string_view piece, Pieces& out);

  std::vector<Step> steps_;
  std::optional<Pattern> pattern_;
};

}  // namespace thimble
