// From a normalised text to the words that merges do not cross: the pre-tokenizer of tokenizer.json.
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

// The four split patterns in wide use, each as a hand-written scanner: some twenty times as fast as the
// regular expression it stands for, and tested to be equal to it.
enum class Pattern { gpt2, llama3, qwen2, o200k };

std::string_view pattern_name(Pattern pattern);
std::string_view pattern_regex(Pattern pattern);
std::optional<Pattern> pattern_with_name(std::string_view name);
std::optional<Pattern> pattern_with_regex(std::string_view regex);

namespace detail {

// The scanners look at characters by position; past the end there is a character of no class.
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

// 's 't 're 've 'm 'll 'd at `p`, or p itself. Without case, U+017F (long s) is an s.
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

// \s+(?!\S)|\s+ at a white space: all of the run at the end of the text, else all but its last character,
// which belongs to what follows.
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

// \s*[\r\n]+|\s+(?!\S)|\s+ at a white space: up to the last line end of the run, if there is one.
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

// The shape that cl100k began: Llama 3 takes digits by three, Qwen2 one by one.
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

  // [head]*[tail]+ at p, or p: when no small letter follows the head, the head gives back what a tail can
  // take.
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

  // Letters with an optional character before them, or p.
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

// use(word) for each word; the words follow each other without gaps and make up the text.
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

  // use(word) for each word that is not empty. Words are valid during the call only.
  template <class Use>
  void for_each(std::string_view text, Use&& use) const {
    if (pattern_) return for_each_word(*pattern_, text, use);
    Pieces pieces = split(text);
    for (const std::string_view piece : pieces.views)
      if (!piece.empty()) use(piece);
  }

  // The hand-written scanner that does all the work, where there is one.
  std::optional<Pattern> pattern() const { return pattern_; }

 private:
  struct Step {
    PreTokenizerStep step;
    std::shared_ptr<const Regex> regex;  // of a Split without a scanner
    std::optional<Pattern> pattern;      // of a Split or ByteLevel with one
  };
  struct Pieces {
    std::vector<std::string_view> views;
    std::vector<std::unique_ptr<std::string>> owned;  // texts that a prefix space was put before
  };

  Pieces split(std::string_view text) const;
  static void run(const Step& step, std::string_view piece, Pieces& out);

  std::vector<Step> steps_;
  std::optional<Pattern> pattern_;
};

}  // namespace thimble
