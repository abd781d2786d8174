// Reads grammars written as text: GBNF, regular expressions and lists of choices.
//
// Each function returns an expression of `grammar` and throws an Error that says where the text is
// wrong. What the notation has but this reader does not support is an error that names it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "infer/grammar.h"

namespace thimble {

inline constexpr char32_t kLastChar = 0x10ffff;

// A set of characters (code points without surrogates), as sorted ranges.
class CharSet {
 public:
  using Range = std::pair<char32_t, char32_t>;  // first and last

  CharSet() = default;
  explicit CharSet(std::vector<Range> ranges);  // in any order; surrogates are removed
  static CharSet all() { return CharSet().inverted(); }

  CharSet inverted() const;
  CharSet without(const CharSet& other) const;
  const std::vector<Range>& ranges() const { return ranges_; }
  std::size_t size() const;

 private:
  std::vector<Range> ranges_;
};

// The characters of the set in UTF-8.
Expr utf8_expr(Grammar& grammar, const CharSet& set);

// The text of a grammar, read one character at a time. Errors give its name, line and column.
class GrammarReader {
 public:
  // Throws if the text has more than `most` bytes or is not UTF-8.
  GrammarReader(std::string_view text, std::string_view name, std::size_t most);

  bool done() const { return at_ == text_.size(); }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool take(std::string_view what);
  void expect(std::string_view what);
  char32_t next();
  template <class Belongs>
  std::string_view take_while(const Belongs& belongs) {
    const std::size_t begin = at_;
    while (at_ < text_.size() && belongs(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  char32_t hex(int digits);
  char32_t character(char32_t code) const;  // throws if it is none
  // {m}, {m,}, {m,n} or {,n}, after the brace.
  std::pair<std::uint32_t, std::uint32_t> counts();

  std::size_t at() const { return at_; }
  void go_to(std::size_t at) { at_ = at; }
  void enter();  // a group; limits how deep they are nested
  void leave() { --depth_; }

  [[noreturn]] void wrong(std::string_view problem) const;

 private:
  std::optional<std::uint32_t> number();

  std::string_view text_, name_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

// A text that the regular expression matches completely. Supported: literals, ., classes, \d \w \s,
// \p{...} for letters, marks and numbers, groups, |, and the quantifiers * + ? {m,n}; ^ and $ at
// the edges. Not supported: look-around, \b and references to groups.
Expr regex_expr(Grammar& grammar, std::string_view pattern);

// A text in which the ECMAScript regular expression matches anywhere. `spell` gives the spelling of
// the characters of a set.
using SpellCharacters = std::function<Expr(const CharSet&)>;
Expr regex_search_expr(Grammar& grammar, std::string_view pattern, const SpellCharacters& spell);

// The notation of llama.cpp's grammars. The text begins with rule "root".
Expr gbnf_expr(Grammar& grammar, std::string_view text);

// Exactly one of the texts, which must be valid UTF-8 and not empty.
Expr choice_expr(Grammar& grammar, std::span<const std::string> choices);

}  // namespace thimble
