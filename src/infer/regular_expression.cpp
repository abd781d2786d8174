// Regular expressions in the syntax of ECMAScript.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "base/error.h"
#include "infer/grammar_text.h"
#include "tokenizer/unicode.h"

namespace thimble {

namespace {

constexpr std::size_t kMaxPatternBytes = 64 << 10;

// Characters of \d, \w and \s, and those that . does not match, in ECMAScript.
using Ranges = std::vector<CharSet::Range>;

CharSet digits() {
  return CharSet(Ranges{{'0', '9'}});
}
CharSet word_characters() {
  return CharSet(Ranges{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
}
CharSet spaces() {
  return CharSet(Ranges{{'\t', '\r'},
                        {' ', ' '},
                        {0xa0, 0xa0},
                        {0x1680, 0x1680},
                        {0x2000, 0x200a},
                        {0x2028, 0x2029},
                        {0x202f, 0x202f},
                        {0x205f, 0x205f},
                        {0x3000, 0x3000},
                        {0xfeff, 0xfeff}});
}
CharSet line_ends() {
  return CharSet(Ranges{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
}

// Properties in \p{...}. Finding their characters takes milliseconds, so each is done once.
struct Property {
  std::string_view name, long_name;
  CharSet set;
};

CharSet characters_of(CharClass classes) {
  Ranges ranges;
  for (char32_t code = 0; code <= kLastChar; ++code) {
    if ((class_of(code) & classes) == 0) continue;
    if (!ranges.empty() && ranges.back().second + 1 == code)
      ranges.back().second = code;
    else
      ranges.emplace_back(code, code);
  }
  return CharSet(std::move(ranges));
}

const std::array<Property, 4>& properties() {
  static const std::array<Property, 4> all = {{{"L", "Letter", characters_of(kLetters)},
                                               {"Ll", "Lowercase_Letter", characters_of(kLower)},
                                               {"M", "Mark", characters_of(kMark)},
                                               {"N", "Number", characters_of(kNumber)}}};
  return all;
}

// A regular expression is compiled while it is read. Each part has up to four variants: whether it
// requires to be at the beginning of the text (^), and whether at its end ($).
class RegexReader {
 public:
  struct Part {
    std::array<std::array<Expr, 2>, 2> at = {};  // [begins][ends]; kNothing: no such variant
  };

  RegexReader(Grammar& grammar, std::string_view pattern, const SpellCharacters& spell)
      : grammar_(grammar), in_(pattern, "regular expression", kMaxPatternBytes), spell_(spell) {}

  Part read() {
    const Part part = alternation();
    if (!in_.done()) in_.wrong("')' without '('");
    return part;
  }

 private:
  static Part plain(Expr e) { return {{{{e, kNothing}, {kNothing, kNothing}}}}; }

  Part alternation() {
    Part result = sequence();
    while (in_.take("|")) {
      const Part other = sequence();
      for (const std::size_t begins : {0u, 1u})
        for (const std::size_t ends : {0u, 1u})
          result.at[begins][ends] = grammar_.alternatives({result.at[begins][ends], other.at[begins][ends]});
    }
    return result;
  }

  // Joined from the right, so that a long pattern takes linear time.
  Part sequence() {
    std::vector<Part> parts;
    while (!in_.done() && in_.peek() != '|' && in_.peek() != ')') parts.push_back(quantified());
    Part result = plain(kEpsilon);
    for (std::size_t i = parts.size(); i-- > 0;) result = joined(parts[i], result);
    return result;
  }

  // Nothing may stand before ^ and after $, except what may be empty.
  Part joined(const Part& first, const Part& second) {
    Part result;
    const auto add = [&](std::size_t begins, std::size_t ends, Expr e) {
      result.at[begins][ends] = grammar_.alternatives({result.at[begins][ends], e});
    };
    const auto empty = [&](Expr e) { return grammar_.accepts(e) ? kEpsilon : kNothing; };
    for (const std::size_t begins : {0u, 1u})
      for (const std::size_t ends : {0u, 1u})
        for (const std::size_t again : {0u, 1u})
          for (const std::size_t last : {0u, 1u}) {
            Expr a = first.at[begins][ends], b = second.at[again][last];
            if (a == kNothing || b == kNothing) continue;
            if (again == 1) a = empty(a);
            if (ends == 1) b = empty(b);
            add(begins | again, ends | last, grammar_.concat(a, b));
          }
    return result;
  }

  Part quantified() {
    const Part part = single();
    std::uint32_t least = 1, most = 1;
    const std::size_t before = in_.at();
    if (in_.take("*")) {
      least = 0, most = kUnbounded;
    } else if (in_.take("+")) {
      most = kUnbounded;
    } else if (in_.take("?")) {
      least = 0;
    } else if (in_.peek() == '{' && (in_.peek(1) >= '0' && in_.peek(1) <= '9')) {
      in_.take("{");
      std::tie(least, most) = in_.counts();
    } else {
      return part;
    }
    in_.take("?");  // a lazy quantifier matches the same texts
    if (in_.peek() == '*' || in_.peek() == '+' || in_.peek() == '?') in_.wrong("two quantifiers in a row");
    for (const std::size_t begins : {0u, 1u})
      for (const std::size_t ends : {0u, 1u})
        if (begins + ends > 0 && part.at[begins][ends] != kNothing) {
          in_.go_to(before);
          in_.wrong("a quantifier after ^ or $ is not supported");
        }
    return plain(grammar_.repeat(part.at[0][0], least, most));
  }

  Part single() {
    if (in_.take("^")) return {{{{kNothing, kNothing}, {kEpsilon, kNothing}}}};
    if (in_.take("$")) return {{{{kNothing, kEpsilon}, {kNothing, kNothing}}}};
    if (in_.take(".")) return plain(spell_(line_ends().inverted()));
    if (in_.take("(")) return group();
    if (in_.take("[")) return plain(spell_(char_class()));
    if (in_.take("\\")) return plain(spell_(escape(false)));
    const char c = in_.peek();
    if (c == '*' || c == '+' || c == '?') in_.wrong("a quantifier without something to repeat");
    return plain(spell_(one(in_.next())));
  }

  Part group() {
    in_.enter();
    if (in_.take("?")) {
      const bool named = in_.peek() == '<' && in_.peek(1) != '=' && in_.peek(1) != '!';
      if (named) in_.take_while([](char c) { return c != '>'; });
      if (!in_.take(named ? ">" : ":")) in_.wrong("look-around and flags in a group are not supported");
    }
    const Part part = alternation();
    in_.expect(")");
    in_.leave();
    return part;
  }

  static CharSet one(char32_t code) { return CharSet(Ranges{{code, code}}); }

  CharSet char_class() {
    const bool inverted = in_.take("^");
    Ranges ranges;
    while (!in_.take("]")) {
      if (in_.done()) in_.wrong("expected ']'");
      const auto [first, single] = class_item();
      const bool range = single && in_.peek() == '-' && in_.peek(1) != ']' && in_.peek(1) != '\0';
      if (!range) {
        ranges.insert(ranges.end(), first.ranges().begin(), first.ranges().end());
        continue;
      }
      in_.take("-");
      const auto [last, also_single] = class_item();
      if (!also_single) in_.wrong("a class is not the end of a range");
      const char32_t from = first.ranges()[0].first, to = last.ranges()[0].first;
      if (from > to) in_.wrong("the ends of a range are in the wrong order");
      ranges.emplace_back(from, to);
    }
    const CharSet set(std::move(ranges));
    return inverted ? set.inverted() : set;
  }

  std::pair<CharSet, bool> class_item() {
    if (!in_.take("\\")) return {one(in_.next()), true};
    CharSet set = escape(true);
    const bool single = set.size() == 1;
    return {std::move(set), single};
  }

  // After the backslash.
  CharSet escape(bool in_class) {
    const char c = in_.peek();
    if (in_.done()) in_.wrong("it ends after a backslash");
    const auto take_one = [&](char32_t code) {
      in_.next();
      return one(code);
    };
    switch (c) {
      case 'd':
      case 'D':
      case 'w':
      case 'W':
      case 's':
      case 'S': {
        in_.next();
        const CharSet set = c == 'd' || c == 'D'   ? digits()
                            : c == 'w' || c == 'W' ? word_characters()
                                                   : spaces();
        return c == 'd' || c == 'w' || c == 's' ? set : set.inverted();
      }
      case 't':
        return take_one('\t');
      case 'n':
        return take_one('\n');
      case 'r':
        return take_one('\r');
      case 'f':
        return take_one('\f');
      case 'v':
        return take_one('\v');
      case 'c': {
        in_.next();
        const char letter = in_.peek();
        if (!((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z')))
          in_.wrong("expected a letter after \\c");
        in_.next();
        return one(static_cast<char32_t>(letter) % 32);
      }
      case 'x':
        in_.next();
        return one(in_.character(in_.hex(2)));
      case 'u':
        in_.next();
        return one(unicode_escape());
      case 'p':
      case 'P':
        in_.next();
        return property(c == 'P');
      case 'b':
        if (in_class) return take_one('\b');
        in_.wrong("\\b is not supported");
      case 'B':
        in_.wrong("\\B is not supported");
      default:
        break;
    }
    if (c == '0' && !(in_.peek(1) >= '0' && in_.peek(1) <= '9')) return take_one(0);
    if (c == 'k' || (c >= '0' && c <= '9')) in_.wrong("references to groups are not supported");
    if (is_letter(c)) in_.wrong(fmt::format("unknown escape \\{}", c));
    return one(in_.next());
  }

  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

  // \u0041, \u{1F600}, or a pair of surrogates.
  char32_t unicode_escape() {
    if (in_.take("{")) {
      char32_t code = 0;
      const std::string_view digits = in_.take_while([](char c) { return c != '}' && c != '\\'; });
      for (const char c : digits) {
        const bool digit = c >= '0' && c <= '9',
                   hex = digit || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
        if (!hex || code > kLastChar) in_.wrong("expected hexadecimal digits in \\u{...}");
        code = code * 16 + static_cast<char32_t>(digit ? c - '0' : (c | 0x20) - 'a' + 10);
      }
      if (digits.empty()) in_.wrong("expected hexadecimal digits in \\u{...}");
      in_.expect("}");
      return in_.character(code);
    }
    const char32_t high = in_.hex(4);
    if (high >= 0xd800 && high < 0xdc00 && in_.take("\\u")) {
      const char32_t low = in_.hex(4);
      if (low >= 0xdc00 && low <= 0xdfff) return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    }
    return in_.character(high);
  }

  CharSet property(bool inverted) {
    in_.expect("{");
    const std::string name(in_.take_while([](char c) { return c != '}'; }));
    in_.expect("}");
    for (const Property& property : properties())
      if (name == property.name || name == property.long_name)
        return inverted ? property.set.inverted() : property.set;
    in_.wrong(fmt::format("the property {} is not supported; L, Ll, M and N are", name));
  }

  Grammar& grammar_;
  GrammarReader in_;
  const SpellCharacters& spell_;
};

}  // namespace

Expr regex_expr(Grammar& grammar, std::string_view pattern) {
  const SpellCharacters spell = [&](const CharSet& set) { return utf8_expr(grammar, set); };
  const RegexReader::Part part = RegexReader(grammar, pattern, spell).read();
  return grammar.alternatives({part.at[0][0], part.at[0][1], part.at[1][0], part.at[1][1]});
}

Expr regex_search_expr(Grammar& grammar, std::string_view pattern, const SpellCharacters& spell) {
  const RegexReader::Part part = RegexReader(grammar, pattern, spell).read();
  const Expr anything = grammar.repeat(spell(CharSet::all()), 0, kUnbounded);
  std::vector<Expr> variants;
  for (const std::size_t begins : {0u, 1u})
    for (const std::size_t ends : {0u, 1u})
      variants.push_back(grammar.concat(
          {begins == 1 ? kEpsilon : anything, part.at[begins][ends], ends == 1 ? kEpsilon : anything}));
  return grammar.alternatives(std::move(variants));
}

}  // namespace thimble
