// The lexical parts of JSON: strings, numbers, formats and literal values.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "infer/json_schema.h"

namespace thimble {

namespace {

constexpr std::uint32_t kMaxIndent = 20;
// Numbers stay within the range of a double: 300 digits, or 20 digits and an exponent below 100.
constexpr std::uint32_t kMaxDigits = 300, kMaxMantissaDigits = 20, kMaxExponentDigits = 2;
constexpr std::size_t kExactDigits = 15;  // every decimal number of this length survives as a double
constexpr std::uint64_t kMaxMultipleStates = 2000;

constexpr std::string_view kTime =
    R"re(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?([zZ]|[+\-]([01]\d|2[0-3]):[0-5]\d))re";
constexpr std::string_view kDate =
    R"re((\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8])))re"
    R"re(|(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29))re";
constexpr std::string_view kByte = R"re((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))re";
constexpr std::string_view kLabel = R"re([A-Za-z0-9]([A-Za-z0-9\-]{0,61}[A-Za-z0-9])?)re";
constexpr std::string_view kAtext = R"re([A-Za-z0-9!#$%&'*+/=?^_`{|}~\-]+)re";

// Up to eight groups of hexadecimal digits, of which one run may be written as "::"; the last two
// may be an IPv4 address.
std::string ipv6_pattern() {
  const std::string group = "[0-9A-Fa-f]{1,4}";
  const std::string last = fmt::format("({0}:{0}|({1}\\.){{3}}{1})", group, kByte);
  std::string pattern = fmt::format("(({}:){{6}}{}", group, last);
  for (int before = 0; before <= 7; ++before) {
    // `before` groups, "::", and at most 7 - before groups.
    const std::string left = before == 0 ? std::string() : fmt::format("{0}(:{0}){{{1}}}", group, before - 1);
    const int after = 7 - before;
    pattern += fmt::format("|{}::", left);
    if (after >= 2) pattern += fmt::format("(({0}:){{0,{1}}}{2}|{0})?", group, after - 2, last);
    if (after == 1) pattern += fmt::format("({})?", group);
  }
  return pattern + ")";
}

std::string uri_pattern() {
  const std::string character = R"re(([A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2}))re";
  const std::string name = R"re(([A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})*)re";
  const std::string user = R"re((([A-Za-z0-9\-._~!$&'()*+,;=:]|%[0-9A-Fa-f]{2})*@)?)re";
  const std::string future = R"re(v[0-9A-Fa-f]+\.[A-Za-z0-9\-._~!$&'()*+,;=:]+)re";
  const std::string host = fmt::format(R"re((\[({}|{})\]|{}))re", ipv6_pattern(), future, name);
  const std::string path = fmt::format("(/{}*)*", character);
  const std::string rest = fmt::format(R"re((\?({0}|[/?])*)?(#({0}|[/?])*)?)re", character);
  return fmt::format(R"re([A-Za-z][A-Za-z0-9+\-.]*:(//{0}{1}(:\d*)?{2}|/({3}+{2})?|{3}+{2}|){4})re", user,
                     host, path, character, rest);
}

std::string email_pattern() {
  return fmt::format(
      R"re(({0}(\.{0})*|"([ !#-\[\]-~]|\\[ -~])*")@({1}(\.{1})*|\[({2}\.){{3}}{2}\]|\[IPv6:{3}\]))re", kAtext,
      kLabel, kByte, ipv6_pattern());
}

struct Format {
  std::string_view name;
  std::string (*pattern)();
};

constexpr Format kFormats[] = {
    {"date", [] { return std::string(kDate); }},
    {"time", [] { return std::string(kTime); }},
    {"date-time", [] { return fmt::format("{}[tT]{}", kDate, kTime); }},
    {"duration",
     [] {
       return std::string(
           R"re(P(\d+W|(\d+Y(\d+M(\d+D)?)?|\d+M(\d+D)?|\d+D)(T(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S))?)re"
           R"re(|T(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S)))re");
     }},
    {"uuid", [] { return std::string("[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"); }},
    {"email", email_pattern},
    {"ipv4", [] { return fmt::format("({0}\\.){{3}}{0}", kByte); }},
    {"ipv6", ipv6_pattern},
    {"uri", uri_pattern},
    {"json-pointer", [] { return std::string("(/([^/~]|~[01])*)*"); }},
};

}  // namespace

bool JsonTerminals::knows_format(std::string_view format) {
  return std::ranges::find(kFormats, format, &Format::name) != std::end(kFormats);
}

JsonTerminals::JsonTerminals(Grammar& g) : grammar_(g) {
  ByteSet blank = ByteSet::range(' ', ' ');
  const Expr one_space = g.byte_set(blank);
  blank.add('\t');
  space_ = g.atom(g.optional(
      g.alternatives({one_space, g.concat(g.literal("\n"), g.repeat(g.byte_set(blank), 0, kMaxIndent))})));

  plain_character_ = spell(CharSet::all());
  ByteSet hex = ByteSet::range('0', '9'), short_escapes, high = ByteSet::range('8', '9'), low;
  hex |= ByteSet::range('a', 'f');
  hex |= ByteSet::range('A', 'F');
  for (const char c : std::string_view("\"\\/bfnrt")) short_escapes.add(static_cast<unsigned char>(c));
  for (const char c : std::string_view("abAB")) high.add(static_cast<unsigned char>(c));
  for (const char c : std::string_view("cdefCDEF")) low.add(static_cast<unsigned char>(c));
  ByteSet d;
  d.add('d');
  d.add('D');
  const Expr digit = g.byte_set(hex), surrogate = g.byte_set(d);
  ByteSet not_d = hex;
  not_d &= ~d;
  const Expr single = g.alternatives({g.concat(g.byte_set(not_d), g.repeat(digit, 3, 3)),
                                      g.concat({surrogate, g.range('0', '7'), digit, digit})});
  const Expr pair = g.concat({surrogate, g.byte_set(high), digit, digit, g.literal("\\u"), surrogate,
                              g.byte_set(low), digit, digit});
  const Expr escape = g.concat(
      g.literal("\\"),
      g.alternatives({g.byte_set(short_escapes), g.concat(g.literal("u"), g.alternatives({single, pair}))}));
  const CharSet unescaped = CharSet::all().without(CharSet({{0, 0x1f}, {'"', '"'}, {'\\', '\\'}}));
  character_ = g.alternatives({utf8_expr(g, unescaped), escape});
  const Expr quote = g.literal("\"");
  plain_string_ = g.atom(g.concat({quote, g.repeat(plain_character_, 0, kUnbounded), quote}));

  const std::uint32_t value = g.declare("value"), object = g.declare("object"), array = g.declare("array");
  value_ = g.ref(value);
  object_ = g.ref(object);
  array_ = g.ref(array);
  const Expr text = string({});
  g.define(object, joined('{', '}', g.concat({text, g.literal(":"), space_, value_})));
  g.define(array, joined('[', ']', value_));
  g.define(value, g.alternatives({object_, array_, text, number({}), g.literal("true"), g.literal("false"),
                                  g.literal("null")}));
}

Expr JsonTerminals::joined(char open, char close, Expr item) {
  Grammar& g = grammar_;
  const Expr end = g.literal(std::string_view(&close, 1));
  const Expr more = g.repeat(g.concat({g.literal(","), space_, item}), 0, kUnbounded);
  return g.concat({g.literal(std::string_view(&open, 1)), space_,
                   g.alternatives({end, g.concat({item, more, space_, end})})});
}

// With the shortest escapes, in small letters, as JSON.stringify and Python write them.
Expr JsonTerminals::spell(const CharSet& set) {
  std::vector<Expr> parts;
  const CharSet unescaped = CharSet::all().without(CharSet({{0, 0x1f}, {'"', '"'}, {'\\', '\\'}}));
  parts.push_back(utf8_expr(grammar_, set.without(unescaped.inverted())));
  for (const auto& [first, last] : set.ranges())
    for (char32_t code = first; code <= std::min<char32_t>(last, '\\'); ++code) {
      if (code >= ' ' && code != '"' && code != '\\') continue;
      std::string quoted;
      append_json_string(quoted, std::string(1, static_cast<char>(code)));
      parts.push_back(grammar_.literal(std::string_view(quoted).substr(1, quoted.size() - 2)));
    }
  return grammar_.alternatives(std::move(parts));
}

Expr JsonTerminals::literal(std::string_view text) {
  std::string quoted;
  append_json_string(quoted, text);
  return grammar_.literal(quoted);
}

Expr JsonTerminals::names_with(std::string_view pattern) {
  if (const auto known = names_.find(pattern); known != names_.end()) return known->second;
  const SpellCharacters spelled = [this](const CharSet& set) { return spell(set); };
  const Expr quote = grammar_.literal("\"");
  const Expr names = grammar_.concat({quote, regex_search_expr(grammar_, pattern, spelled), quote});
  names_.emplace(pattern, names);
  return names;
}

Expr JsonTerminals::string(const StringLimits& limits) {
  Grammar& g = grammar_;
  if (limits.shortest > limits.longest) return kNothing;
  const bool plain = !limits.patterns.empty() || !limits.formats.empty();
  const Expr quote = g.literal("\"");
  const Expr length = g.concat(
      {quote, g.repeat(plain ? plain_character_ : character_, limits.shortest, limits.longest), quote});
  if (!plain) return g.atom(length);
  std::vector<Expr> parts;
  if (limits.shortest > 0 || limits.longest != kUnbounded) parts.push_back(length);
  for (const std::string& pattern : limits.patterns) parts.push_back(names_with(pattern));
  for (const std::string& format : limits.formats) {
    const Format& known = *std::ranges::find(kFormats, format, &Format::name);
    parts.push_back(names_with("^(" + known.pattern() + ")$"));
  }
  return g.atom(g.intersection(std::move(parts)));
}

Expr JsonTerminals::value(const Json& value) {
  Grammar& g = grammar_;
  if (value.is_string()) return literal(value.as_string());
  if (value.is_number()) {
    const Decimal number = decimal_of(value);
    return g.literal(fmt::format("{}{}{}{}", number.negative ? "-" : "", number.integer,
                                 number.fraction.empty() ? "" : ".", number.fraction));
  }
  std::vector<Expr> items;
  if (value.is_array()) {
    for (const Json& item : value.as_array()) items.push_back(this->value(item));
  } else if (value.is_object()) {
    for (const auto& [name, member] : value.as_object())
      items.push_back(g.concat({literal(name), g.literal(":"), space_, this->value(member)}));
  } else {
    return g.literal(value.dump());
  }
  const bool array = value.is_array();
  const Expr open = g.literal(array ? "[" : "{"), close = g.literal(array ? "]" : "}");
  if (items.empty()) return g.concat({open, space_, close});
  Expr result = g.concat(space_, close);
  for (std::size_t i = items.size(); i-- > 0;)
    result = g.concat({i == 0 ? kEpsilon : g.literal(","), space_, items[i], result});
  return g.concat(open, result);
}

// Numbers.

Decimal decimal_of(const Json& number) {
  std::string text = number.is_int()    ? std::to_string(number.as_int())
                     : number.is_uint() ? std::to_string(number.as_uint())
                                        : fmt::format("{}", number.as_double());
  Decimal result;
  if (text.starts_with('-')) {
    result.negative = true;
    text.erase(0, 1);
  }
  std::int64_t exponent = 0;
  if (const std::size_t e = text.find('e'); e != text.npos) {
    std::string_view digits = std::string_view(text).substr(e + 1);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    exponent = parse_number<std::int64_t>(digits).value_or(0);
    text.resize(e);
  }
  std::size_t point = std::min(text.find('.'), text.size());
  if (point < text.size()) text.erase(point, 1);
  std::int64_t at = static_cast<std::int64_t>(point) + exponent;
  if (at < 0) text.insert(0, static_cast<std::size_t>(-at), '0'), at = 0;
  if (static_cast<std::size_t>(at) > text.size()) text.resize(static_cast<std::size_t>(at), '0');
  result.integer = text.substr(0, static_cast<std::size_t>(at));
  result.fraction = text.substr(static_cast<std::size_t>(at));
  result.integer.erase(0, std::min(result.integer.find_first_not_of('0'), result.integer.size()));
  if (result.integer.empty()) result.integer = "0";
  result.fraction.resize(result.fraction.find_last_not_of('0') + 1);
  if (result.integer == "0" && result.fraction.empty()) result.negative = false;
  return result;
}

namespace {

bool less_magnitude(const Decimal& a, const Decimal& b) {
  if (a.integer.size() != b.integer.size()) return a.integer.size() < b.integer.size();
  if (a.integer != b.integer) return a.integer < b.integer;
  return a.fraction < b.fraction;
}

}  // namespace

bool less(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative;
  return a.negative ? less_magnitude(b, a) : less_magnitude(a, b);
}

Expr JsonTerminals::magnitude(bool fraction) {
  Grammar& g = grammar_;
  const Expr digit = g.range('0', '9');
  const Expr integer =
      g.alternatives({g.literal("0"), g.concat(g.range('1', '9'), g.repeat(digit, 0, kMaxDigits - 1))});
  if (!fraction) return integer;
  return g.concat(integer, g.optional(g.concat(g.literal("."), g.repeat(digit, 1, kMaxDigits))));
}

// Magnitudes that are at least (or exceed) the bound's: a larger integer part, or the same one and
// a fraction whose first larger digit decides.
Expr JsonTerminals::at_least(const Decimal& bound, bool exclusive) {
  Grammar& g = grammar_;
  const Expr digit = g.range('0', '9'), any_digits = g.repeat(digit, 0, kMaxDigits);
  const Expr any_fraction = g.optional(g.concat(g.literal("."), g.repeat(digit, 1, kMaxDigits)));
  const std::string &integer = bound.integer, &fraction = bound.fraction;
  const auto above = [&](char c) {
    return c == '9' ? kNothing : g.range(static_cast<unsigned char>(c + 1), '9');
  };
  const auto size = static_cast<std::uint32_t>(integer.size());
  std::vector<Expr> larger;
  if (size < kMaxDigits)
    larger.push_back(g.concat(g.range('1', '9'), g.repeat(digit, integer == "0" ? 0 : size, kMaxDigits - 1)));
  Expr same = kNothing;  // of the same size
  for (std::uint32_t i = size; i-- > 0;)
    same = g.alternatives({g.concat(above(integer[i]), g.repeat(digit, size - i - 1, size - i - 1)),
                           g.concat(g.literal(integer.substr(i, 1)), same)});
  larger.push_back(same);

  Expr tail = exclusive ? g.concat({g.repeat(g.literal("0"), 0, kMaxDigits), g.range('1', '9'), any_digits})
                        : any_digits;  // after the digits of the fraction
  if (fraction.empty()) {
    tail = exclusive ? g.concat(g.literal("."), tail) : any_fraction;
  } else {
    for (std::size_t i = fraction.size(); i-- > 0;)
      tail = g.alternatives(
          {g.concat(above(fraction[i]), any_digits), g.concat(g.literal(fraction.substr(i, 1)), tail)});
    tail = g.concat(g.literal("."), tail);
  }
  return g.alternatives({g.concat(g.alternatives(larger), any_fraction), g.concat(g.literal(integer), tail)});
}

Expr JsonTerminals::at_most(const Decimal& bound, bool exclusive) {
  Grammar& g = grammar_;
  const Expr digit = g.range('0', '9'), any_digits = g.repeat(digit, 0, kMaxDigits);
  const Expr any_fraction = g.optional(g.concat(g.literal("."), g.repeat(digit, 1, kMaxDigits)));
  const std::string &integer = bound.integer, &fraction = bound.fraction;
  const auto below = [&](char c, char least) {
    return c <= least ? kNothing
                      : g.range(static_cast<unsigned char>(least), static_cast<unsigned char>(c - 1));
  };
  const auto size = static_cast<std::uint32_t>(integer.size());
  std::vector<Expr> smaller;
  if (size > 1) smaller = {g.literal("0"), g.concat(g.range('1', '9'), g.repeat(digit, 0, size - 2))};
  Expr same = kNothing;
  for (std::uint32_t i = size; i-- > 0;)
    same = g.alternatives({g.concat(below(integer[i], i == 0 && size > 1 ? '1' : '0'),
                                    g.repeat(digit, size - i - 1, size - i - 1)),
                           g.concat(g.literal(integer.substr(i, 1)), same)});
  smaller.push_back(same);

  // After the digits of the fraction. A shorter fraction is smaller.
  Expr tail = exclusive ? kNothing : g.repeat(g.literal("0"), 0, kMaxDigits);
  Expr none = kEpsilon;
  if (fraction.empty()) {
    none = exclusive ? kNothing : kEpsilon;
    tail = exclusive ? kNothing : g.concat(g.literal("."), g.repeat(g.literal("0"), 1, kMaxDigits));
  } else {
    for (std::size_t i = fraction.size(); i-- > 0;) {
      tail = g.alternatives(
          {g.concat(below(fraction[i], '0'), any_digits), g.concat(g.literal(fraction.substr(i, 1)), tail)});
      if (i > 0) tail = g.optional(tail);
    }
    tail = g.concat(g.literal("."), tail);
  }
  return g.alternatives({g.concat(g.alternatives(smaller), any_fraction),
                         g.concat(g.literal(integer), g.alternatives({none, tail}))});
}

Expr JsonTerminals::signed_at_least(const NumberLimits::Bound& bound) {
  Grammar& g = grammar_;
  const Expr minus = g.literal("-");
  if (bound.value.negative)
    return g.alternatives({magnitude(true), g.concat(minus, at_most(bound.value, bound.exclusive))});
  const Expr positive = at_least(bound.value, bound.exclusive);
  const bool zero = bound.value.integer == "0" && bound.value.fraction.empty() && !bound.exclusive;
  return zero ? g.alternatives({positive, g.concat(minus, at_most(bound.value, false))}) : positive;
}

Expr JsonTerminals::signed_at_most(const NumberLimits::Bound& bound) {
  Grammar& g = grammar_;
  const Expr minus = g.literal("-");
  if (bound.value.negative) return g.concat(minus, at_least(bound.value, bound.exclusive));
  const bool zero = bound.value.integer == "0" && bound.value.fraction.empty();
  const Expr negative = zero && bound.exclusive ? at_least(bound.value, true) : magnitude(true);
  return g.alternatives({at_most(bound.value, bound.exclusive), g.concat(minus, negative)});
}

// The automaton that knows the number so far modulo the step, in units of the step's last digit.
Expr JsonTerminals::multiple_of(const Decimal& step) {
  Grammar& g = grammar_;
  const std::string digits = (step.integer == "0" ? "" : step.integer) + step.fraction;
  const std::size_t first = std::min(digits.find_first_not_of('0'), digits.size());
  const auto unit = parse_number<std::uint64_t>(std::string_view(digits).substr(first));
  const std::uint64_t places = step.fraction.size();
  check(unit && *unit > 0 && *unit <= kMaxMultipleStates && *unit * (places + 1) <= kMaxMultipleStates,
        "multipleOf {}{}{} is not supported: it needs more than {} states", step.integer,
        step.fraction.empty() ? "" : ".", step.fraction, kMaxMultipleStates);
  const std::uint64_t modulus = *unit;
  const auto fits = [&](std::uint64_t rest, std::uint64_t done) {
    for (; done < places; ++done) rest = rest * 10 % modulus;
    return rest == 0;
  };
  // rules[place][rest]: after `place` digits of the fraction; place 0: of the integer part.
  std::vector<std::vector<std::uint32_t>> rules(places + 1);
  for (std::uint64_t place = 0; place <= places; ++place)
    for (std::uint64_t rest = 0; rest < modulus; ++rest)
      rules[place].push_back(g.declare("multiple", fits(rest, place)));
  const auto after = [&](std::uint64_t place, std::uint64_t rest, char least) {
    std::vector<Expr> parts;
    for (char c = least; c <= '9'; ++c)
      parts.push_back(g.concat(g.literal(std::string_view(&c, 1)),
                               g.ref(rules[place][(rest * 10 + static_cast<unsigned>(c - '0')) % modulus])));
    return g.alternatives(std::move(parts));
  };
  const auto end = [&](std::uint64_t place, std::uint64_t rest) {
    return fits(rest, place) ? kEpsilon : kNothing;
  };
  const auto fraction = [&](std::uint64_t rest) {
    return places > 0 ? g.concat(g.literal("."), after(1, rest, '0')) : kNothing;
  };
  for (std::uint64_t rest = 0; rest < modulus; ++rest) {
    g.define(rules[0][rest], g.alternatives({end(0, rest), after(0, rest, '0'), fraction(rest)}));
    for (std::uint64_t place = 1; place <= places; ++place)
      g.define(rules[place][rest],
               g.alternatives({end(place, rest), place < places ? after(place + 1, rest, '0') : kNothing}));
  }
  const Expr zero = g.concat(g.literal("0"), g.optional(fraction(0)));
  return g.concat(g.optional(g.literal("-")), g.alternatives({zero, after(0, 0, '1')}));
}

Expr JsonTerminals::number(const NumberLimits& limits) {
  Grammar& g = grammar_;
  const Expr sign = g.optional(g.literal("-"));
  if (limits.least.empty() && limits.most.empty() && limits.multiples.empty()) {
    if (limits.integer) return g.atom(g.concat(sign, magnitude(false)));
    const Expr digit = g.range('0', '9');
    ByteSet e = ByteSet::range('e', 'e'), plus_or_minus = ByteSet::range('+', '+');
    e.add('E');
    plus_or_minus.add('-');
    const Expr mantissa =
        g.concat(g.alternatives({g.literal("0"),
                                 g.concat(g.range('1', '9'), g.repeat(digit, 0, kMaxMantissaDigits - 1))}),
                 g.optional(g.concat(g.literal("."), g.repeat(digit, 1, kMaxDigits))));
    const Expr exponent = g.concat(
        {g.byte_set(e), g.optional(g.byte_set(plus_or_minus)), g.repeat(digit, 1, kMaxExponentDigits)});
    return g.atom(g.concat(sign, g.alternatives({magnitude(true), g.concat(mantissa, exponent)})));
  }
  // Programs that read the number as a double must see the same multiple, on the same side of each
  // bound.
  std::size_t longest = kExactDigits;
  const auto count = [&](const Decimal& value) {
    longest = std::max(longest, value.integer.size() + value.fraction.size() + 1);
  };
  for (const NumberLimits::Bound& bound : limits.least) count(bound.value);
  for (const NumberLimits::Bound& bound : limits.most) count(bound.value);
  for (const Decimal& step : limits.multiples) count(step);
  ByteSet digits_and_point = ByteSet::range('0', '9');
  digits_and_point.add('.');
  std::vector<Expr> parts = {
      g.concat(sign, magnitude(!limits.integer)),
      g.concat(sign, g.repeat(g.byte_set(digits_and_point), 1, static_cast<std::uint32_t>(longest)))};
  for (const NumberLimits::Bound& bound : limits.least) parts.push_back(signed_at_least(bound));
  for (const NumberLimits::Bound& bound : limits.most) parts.push_back(signed_at_most(bound));
  for (const Decimal& step : limits.multiples) parts.push_back(multiple_of(step));
  return g.atom(g.intersection(std::move(parts)));
}

}  // namespace thimble
