#include "infer/grammar_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"

namespace thimble {

namespace {

constexpr char32_t kFirstSurrogate = 0xd800, kLastSurrogate = 0xdfff;
constexpr std::size_t kMaxGrammarBytes = 256 << 10;
constexpr std::size_t kMaxRules = 5'000;
constexpr std::size_t kMaxChoices = 10'000;
constexpr std::size_t kMaxChoiceBytes = 64 << 10;  // of all choices
constexpr std::uint32_t kMaxCount = 1'000'000;
constexpr int kMaxNesting = 200;
constexpr int kMaxQuantifiers = 8;   // in a row
constexpr int kMaxRuleDepth = 1000;  // rules in rules that are searched for atoms
constexpr std::size_t kMaxVisits = 5'000'000;
constexpr std::size_t kLargeSet = 64;  // characters

}  // namespace

CharSet::CharSet(std::vector<Range> ranges) {
  std::ranges::sort(ranges);
  for (const Range& range : ranges) {
    if (!ranges_.empty() && range.first <= ranges_.back().second + 1)
      ranges_.back().second = std::max(ranges_.back().second, range.second);
    else
      ranges_.push_back(range);
  }
  *this = inverted().inverted();
}

CharSet CharSet::inverted() const {
  CharSet result;
  char32_t next = 0;
  const auto add_gap = [&](char32_t first, char32_t end) {
    // Surrogates are not characters.
    if (first < kFirstSurrogate && first < end)
      result.ranges_.emplace_back(first, std::min(end, kFirstSurrogate) - 1);
    first = std::max<char32_t>(first, kLastSurrogate + 1);
    if (first < end) result.ranges_.emplace_back(first, end - 1);
  };
  for (const auto& [first, last] : ranges_) {
    if (first > next) add_gap(next, first);
    next = last + 1;
  }
  if (next <= kLastChar) add_gap(next, kLastChar + 1);
  return result;
}

CharSet CharSet::without(const CharSet& other) const {
  std::vector<Range> outside = inverted().ranges_;
  outside.insert(outside.end(), other.ranges_.begin(), other.ranges_.end());
  return CharSet(std::move(outside)).inverted();
}

std::size_t CharSet::size() const {
  std::size_t count = 0;
  for (const auto& [first, last] : ranges_) count += last - first + 1;
  return count;
}

namespace {

// Ranges of bytes, one for each byte of a character.
using ByteRanges = std::vector<std::pair<unsigned char, unsigned char>>;

// Splits a range of characters until all bytes but the first differing one are complete.
void split_utf8(char32_t first, char32_t last, std::vector<ByteRanges>& out) {
  for (const char32_t end : {char32_t{0x7f}, char32_t{0x7ff}, char32_t{0xffff}})
    if (first <= end && last > end) {
      split_utf8(first, end, out);
      return split_utf8(end + 1, last, out);
    }
  for (const int bits : {6, 12, 18}) {
    const char32_t mask = (char32_t{1} << bits) - 1;
    if (last <= 0x7f || (first & ~mask) == (last & ~mask)) continue;
    if ((first & mask) != 0) {
      split_utf8(first, first | mask, out);
      return split_utf8((first | mask) + 1, last, out);
    }
    if ((last & mask) != mask) {
      split_utf8(first, (last & ~mask) - 1, out);
      return split_utf8(last & ~mask, last, out);
    }
  }
  std::string low, high;
  append_utf8(low, first);
  append_utf8(high, last);
  ByteRanges ranges;
  for (std::size_t i = 0; i < low.size(); ++i)
    ranges.emplace_back(static_cast<unsigned char>(low[i]), static_cast<unsigned char>(high[i]));
  out.push_back(std::move(ranges));
}

// Sequences with the same first range are adjacent and share it.
Expr bytes_expr(Grammar& grammar, std::span<const ByteRanges> sequences, std::size_t at) {
  std::vector<Expr> parts;
  while (!sequences.empty()) {
    if (sequences.front().size() == at) return kEpsilon;
    const auto head = sequences.front()[at];
    std::size_t count = 1;
    while (count < sequences.size() && sequences[count].size() > at && sequences[count][at] == head) ++count;
    parts.push_back(grammar.concat(grammar.range(head.first, head.second),
                                   bytes_expr(grammar, sequences.first(count), at + 1)));
    sequences = sequences.subspan(count);
  }
  return grammar.alternatives(std::move(parts));
}

}  // namespace

Expr utf8_expr(Grammar& grammar, const CharSet& set) {
  std::vector<ByteRanges> sequences;
  for (const auto& [first, last] : set.ranges()) split_utf8(first, last, sequences);
  return bytes_expr(grammar, sequences, 0);
}

GrammarReader::GrammarReader(std::string_view text, std::string_view name, std::size_t most)
    : text_(text), name_(name) {
  check(text.size() <= most, "{} has {} bytes, more than {}", name, text.size(), most);
  check(is_utf8(text), "{} is not valid UTF-8", name);
}

bool GrammarReader::take(std::string_view what) {
  const bool here = text_.substr(at_).starts_with(what);
  if (here) at_ += what.size();
  return here;
}

void GrammarReader::expect(std::string_view what) {
  if (!take(what)) wrong(fmt::format("expected '{}'", what));
}

char32_t GrammarReader::next() {
  if (done()) wrong("it ends too early");
  const Utf8Char c = decode_utf8(text_.data() + at_, text_.data() + text_.size());
  at_ += c.bytes;
  return c.code;
}

char32_t GrammarReader::hex(int digits) {
  unsigned code = 0;
  const std::string_view text = text_.substr(at_, static_cast<std::size_t>(digits));
  const char* const end = text.data() + text.size();
  if (std::ssize(text) < digits || std::from_chars(text.data(), end, code, 16).ptr != end)
    wrong(fmt::format("expected {} hexadecimal digits", digits));
  at_ += text.size();
  return code;
}

char32_t GrammarReader::character(char32_t code) const {
  if (code > kLastChar || (code >= kFirstSurrogate && code <= kLastSurrogate))
    wrong(fmt::format("U+{:04X} is not a character", static_cast<unsigned>(code)));
  return code;
}

std::optional<std::uint32_t> GrammarReader::number() {
  const std::string_view digits = take_while([](char c) { return c >= '0' && c <= '9'; });
  if (digits.empty()) return std::nullopt;
  const auto value = parse_number<std::uint32_t>(digits);
  if (!value || *value > kMaxCount) wrong(fmt::format("a count must be at most {}", kMaxCount));
  return value;
}

std::pair<std::uint32_t, std::uint32_t> GrammarReader::counts() {
  const auto least = number();
  std::uint32_t most = least.value_or(0);
  if (take(","))
    most = number().value_or(kUnbounded);
  else if (!least)
    wrong("expected a count");
  expect("}");
  if (least.value_or(0) > most) wrong("the counts are in the wrong order");
  return {least.value_or(0), most};
}

void GrammarReader::enter() {
  if (++depth_ > kMaxNesting) wrong(fmt::format("groups are nested more than {} deep", kMaxNesting));
}

void GrammarReader::wrong(std::string_view problem) const {
  const std::string_view before = text_.substr(0, at_);
  const auto line = 1 + std::ranges::count(before, '\n');
  const std::size_t column = 1 + before.size() - (before.rfind('\n') + 1);
  fail("{}:{}:{}: {}", name_, line, column, problem);
}

Expr choice_expr(Grammar& grammar, std::span<const std::string> choices) {
  check(!choices.empty(), "expected at least one choice");
  check(choices.size() <= kMaxChoices, "expected at most {} choices, got {}", kMaxChoices, choices.size());
  std::size_t bytes = 0;
  std::vector<Expr> parts;
  for (const std::string& choice : choices) {
    check(!choice.empty(), "a choice must not be empty");
    check(is_utf8(choice), "a choice must be valid UTF-8");
    bytes += choice.size();
    check(bytes <= kMaxChoiceBytes, "all choices together may have {} bytes", kMaxChoiceBytes);
    parts.push_back(grammar.literal(choice));
  }
  return grammar.alternatives(std::move(parts));
}

namespace {

// GBNF is read into a tree first, because a rule may be used before it is defined, and whether it
// accepts the empty string depends on all of them.
struct GbnfNode {
  enum class Kind : std::uint8_t { characters, text, rule, sequence, choice, repeat } kind;
  CharSet set = {};
  std::string text = {};
  std::size_t rule = 0;
  std::vector<std::size_t> parts = {};  // indices of nodes
  std::uint32_t least = 1, most = 1;
};

class GbnfReader {
 public:
  explicit GbnfReader(std::string_view text) : in_(text, "grammar", kMaxGrammarBytes) {
    skip(true);
    while (!in_.done()) read_rule();
    const auto root = names_.find("root");
    if (root == names_.end() || !rules_[root->second].body) fail("the grammar has no rule 'root'");
    root_ = root->second;
    for (const Rule& rule : rules_)
      if (!rule.body) fail("grammar: rule '{}' is used but not defined", rule.name);
    find_atoms();
  }

  // Whether rules accept the empty string is assumed, built, and corrected.
  Expr build(Grammar& grammar) {
    std::vector<bool> nullable(rules_.size(), false);
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t i = 0; i < rules_.size(); ++i)
        if (!nullable[i] && is_nullable(*rules_[i].body, nullable)) nullable[i] = changed = true;
    }
    for (std::size_t i = 0; i < rules_.size(); ++i) grammar.declare(rules_[i].name, nullable[i]);
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      const Expr body = expr(grammar, *rules_[i].body);
      grammar.define(static_cast<std::uint32_t>(i), rules_[i].atom ? grammar.atom(body) : body);
    }
    return grammar.ref(static_cast<std::uint32_t>(root_));
  }

 private:
  struct Rule {
    std::string name;
    std::optional<std::size_t> body = {};
    bool atom = false;
  };

  void skip(bool newlines) {
    for (;;) {
      in_.take_while([&](char c) { return c == ' ' || c == '\t' || (newlines && (c == '\n' || c == '\r')); });
      if (in_.peek() != '#') return;
      in_.take_while([](char c) { return c != '\n' && c != '\r'; });
    }
  }

  static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  }

  std::size_t rule_id(std::string_view name) {
    const auto [found, added] = names_.try_emplace(std::string(name), rules_.size());
    if (added) rules_.push_back({.name = std::string(name)});
    if (rules_.size() > kMaxRules) in_.wrong(fmt::format("there are more than {} rules", kMaxRules));
    return found->second;
  }

  std::size_t add(GbnfNode node) {
    nodes_.push_back(std::move(node));
    return nodes_.size() - 1;
  }

  void read_rule() {
    const std::string_view name = in_.take_while(is_name);
    if (name.empty()) in_.wrong("expected the name of a rule");
    const std::size_t id = rule_id(name);
    if (rules_[id].body) in_.wrong(fmt::format("rule '{}' is defined twice", name));
    skip(false);
    in_.expect("::=");
    skip(true);
    rules_[id].body = choice(false);
    if (!in_.done() && in_.peek() != '\n' && in_.peek() != '\r') in_.wrong("expected the end of the line");
    skip(true);
  }

  std::size_t choice(bool nested) {
    GbnfNode node{.kind = GbnfNode::Kind::choice};
    for (;;) {
      node.parts.push_back(sequence(nested));
      const std::size_t end = in_.at();
      skip(true);  // the next alternative may stand on the next line
      if (!in_.take("|")) {
        if (!nested) in_.go_to(end);
        return add(std::move(node));
      }
      skip(true);
    }
  }

  std::size_t sequence(bool nested) {
    GbnfNode node{.kind = GbnfNode::Kind::sequence};
    for (;;) {
      const std::size_t begin = in_.at();
      const std::optional<std::size_t> part = single();
      if (!part) {
        if (in_.at() != begin || in_.peek() == '<' || in_.peek() == '!')
          in_.wrong("tokens in a grammar are not supported");
        return add(std::move(node));
      }
      node.parts.push_back(quantified(*part));
      skip(nested);
    }
  }

  std::size_t quantified(std::size_t part) {
    for (int in_a_row = 0;; ++in_a_row) {
      if (in_a_row > kMaxQuantifiers) in_.wrong("too many quantifiers in a row");
      std::uint32_t least = 0, most = kUnbounded;
      if (in_.take("{"))
        std::tie(least, most) = in_.counts();
      else if (in_.take("+"))
        least = 1;
      else if (in_.take("?"))
        most = 1;
      else if (!in_.take("*"))
        return part;
      part = add({.kind = GbnfNode::Kind::repeat, .parts = {part}, .least = least, .most = most});
    }
  }

  std::optional<std::size_t> single() {
    if (in_.take("\"")) {
      GbnfNode node{.kind = GbnfNode::Kind::text};
      while (!in_.take("\"")) append_utf8(node.text, character());
      return add(std::move(node));
    }
    if (in_.take("[")) {
      GbnfNode node{.kind = GbnfNode::Kind::characters};
      const bool inverted = in_.take("^");
      std::vector<CharSet::Range> ranges;
      while (!in_.take("]")) {
        const char32_t first = character();
        char32_t last = first;
        if (in_.peek() == '-' && in_.peek(1) != ']') {
          in_.take("-");
          last = character();
        }
        if (first > last) in_.wrong("the ends of a range are in the wrong order");
        ranges.emplace_back(first, last);
      }
      node.set = CharSet(std::move(ranges));
      if (inverted) node.set = node.set.inverted();
      return add(std::move(node));
    }
    if (in_.take(".")) return add({.kind = GbnfNode::Kind::characters, .set = CharSet::all()});
    if (in_.take("(")) {
      in_.enter();
      skip(true);
      const std::size_t part = choice(true);
      in_.expect(")");
      in_.leave();
      return part;
    }
    const std::string_view name = in_.take_while(is_name);
    if (name.empty()) return std::nullopt;
    return add({.kind = GbnfNode::Kind::rule, .rule = rule_id(name)});
  }

  char32_t character() {
    const char32_t c = in_.next();
    if (c != '\\') return c;
    const char32_t escaped = in_.next();
    switch (escaped) {
      case 'x':
        return in_.character(in_.hex(2));
      case 'u':
        return in_.character(in_.hex(4));
      case 'U':
        return in_.character(in_.hex(8));
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case 'n':
        return '\n';
      case '\\':
      case '"':
      case '[':
      case ']':
        return escaped;
      default:
        break;
    }
    in_.wrong("unknown escape");
  }

  bool is_nullable(std::size_t at, const std::vector<bool>& rules) {
    const GbnfNode& node = nodes_[at];
    check(++visits_ <= kMaxVisits, "the grammar is too complex");
    const auto part = [&](std::size_t i) { return is_nullable(i, rules); };
    switch (node.kind) {
      case GbnfNode::Kind::characters:
        return false;
      case GbnfNode::Kind::text:
        return node.text.empty();
      case GbnfNode::Kind::rule:
        return rules[node.rule];
      case GbnfNode::Kind::sequence:
        return std::ranges::all_of(node.parts, part);
      case GbnfNode::Kind::choice:
        return std::ranges::any_of(node.parts, part);
      case GbnfNode::Kind::repeat:
        return node.least == 0 || part(node.parts[0]);
    }
    return false;
  }

  Expr expr(Grammar& grammar, std::size_t at) const {
    const GbnfNode& node = nodes_[at];
    switch (node.kind) {
      case GbnfNode::Kind::characters:
        return utf8_expr(grammar, node.set);
      case GbnfNode::Kind::text:
        return grammar.literal(node.text);
      case GbnfNode::Kind::rule:
        return grammar.ref(static_cast<std::uint32_t>(node.rule));
      case GbnfNode::Kind::repeat:
        return grammar.repeat(expr(grammar, node.parts[0]), node.least, node.most);
      case GbnfNode::Kind::sequence: {
        Expr result = kEpsilon;
        for (std::size_t i = node.parts.size(); i-- > 0;)
          result = grammar.concat(expr(grammar, node.parts[i]), result);
        return result;
      }
      case GbnfNode::Kind::choice: {
        std::vector<Expr> parts;
        for (const std::size_t part : node.parts) parts.push_back(expr(grammar, part));
        return grammar.alternatives(std::move(parts));
      }
    }
    return kNothing;
  }

  // What a rule and the rules that it uses contain.
  struct Contents {
    bool recursive = false, large_repeat = false, large_set = false, atom = false;
  };

  // An atom is a rule that repeats characters of a large set, such as a string, and neither calls
  // itself nor contains another atom.
  void find_atoms() {
    std::vector<std::optional<Contents>> known(rules_.size());
    std::vector<bool> entered(rules_.size(), false);
    for (std::size_t i = 0; i < rules_.size(); ++i) contents_of_rule(i, known, entered, 0);
  }

  Contents contents_of_rule(std::size_t rule, std::vector<std::optional<Contents>>& known,
                            std::vector<bool>& entered, int depth) {
    if (known[rule]) return *known[rule];
    if (entered[rule] || depth > kMaxRuleDepth) return {.recursive = true};
    entered[rule] = true;
    Contents contents = contents_of(*rules_[rule].body, known, entered, depth + 1);
    entered[rule] = false;
    if (contents.large_repeat && !contents.recursive && !contents.atom) rules_[rule].atom = true;
    contents.atom |= rules_[rule].atom;
    known[rule] = contents;
    return contents;
  }

  Contents contents_of(std::size_t at, std::vector<std::optional<Contents>>& known,
                       std::vector<bool>& entered, int depth) {
    const GbnfNode& node = nodes_[at];
    if (node.kind == GbnfNode::Kind::rule) return contents_of_rule(node.rule, known, entered, depth);
    Contents contents{.large_set = node.set.size() >= kLargeSet};
    for (const std::size_t i : node.parts) {
      const Contents part = contents_of(i, known, entered, depth + 1);
      contents.recursive |= part.recursive;
      contents.large_repeat |= part.large_repeat;
      contents.large_set |= part.large_set;
      contents.atom |= part.atom;
    }
    if (node.kind == GbnfNode::Kind::repeat && node.most > 1) contents.large_repeat |= contents.large_set;
    return contents;
  }

  GrammarReader in_;
  std::vector<GbnfNode> nodes_;
  std::vector<Rule> rules_;
  std::map<std::string, std::size_t> names_;
  std::size_t root_ = 0;
  std::size_t visits_ = 0;
};

}  // namespace

Expr gbnf_expr(Grammar& grammar, std::string_view text) {
  return GbnfReader(text).build(grammar);
}

}  // namespace thimble
