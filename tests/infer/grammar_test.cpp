// Compares grammars with matchers that work in other ways: std::regex, and a search over all ways
// to split a text.
#include "infer/grammar.h"

#include <regex>
#include <set>

#include "base/rng.h"
#include "base/text.h"
#include "infer/grammar_text.h"
#include "support/message_of.h"

namespace thimble {
namespace {

struct Compiled {
  std::unique_ptr<Grammar> grammar = std::make_unique<Grammar>();
  Expr start = kNothing;

  Expr after(std::string_view text) const {
    grammar->allow_work(10'000'000);
    Expr state = start;
    for (const char c : text) state = grammar->step(state, static_cast<unsigned char>(c));
    return state;
  }
  bool accepts(std::string_view text) const { return grammar->accepts(after(text)); }
};

Compiled from_gbnf(std::string_view text) {
  Compiled compiled;
  compiled.start = compiled.grammar->finish(gbnf_expr(*compiled.grammar, text));
  return compiled;
}

Compiled from_regex(std::string_view pattern) {
  Compiled compiled;
  compiled.start = compiled.grammar->finish(regex_expr(*compiled.grammar, pattern));
  return compiled;
}

std::vector<std::string> texts_over(std::string_view alphabet, std::size_t longest) {
  std::vector<std::string> all = {""};
  for (std::size_t begin = 0, size = 0; size < longest; ++size) {
    const std::size_t end = all.size();
    for (; begin < end; ++begin)
      for (const char c : alphabet) all.push_back(all[begin] + c);
  }
  return all;
}

// The shortest text that completes a state; nullopt if a short search does not find it.
std::optional<std::string> completion(const Compiled& compiled, Expr state, std::string_view alphabet) {
  std::vector<std::pair<Expr, std::string>> open = {{state, ""}};
  std::set<Expr> seen = {state};
  for (std::size_t i = 0; i < open.size() && i < 2000; ++i) {
    if (compiled.grammar->accepts(open[i].first)) return open[i].second;
    for (const char c : alphabet) {
      const Expr next = compiled.grammar->step(open[i].first, static_cast<unsigned char>(c));
      if (next != kNothing && seen.insert(next).second) open.emplace_back(next, open[i].second + c);
    }
  }
  return std::nullopt;
}

// A random grammar of three rules in which no rule begins with itself, and a matcher for it that
// returns the ends of all matches.
class RandomGrammar {
 public:
  explicit RandomGrammar(std::uint64_t seed) : rng_(seed, 0) {
    for (int rule = 0; rule < kRules; ++rule) rules_.push_back(choice(2, rule));
  }

  std::string text() const {
    std::string all;
    for (int rule = 0; rule < kRules; ++rule)
      all += fmt::format("{} ::= {}\n", name(rule), spelled(rules_[static_cast<std::size_t>(rule)]));
    return all;
  }
  bool matches(std::string_view text) const { return ends(rules_[0], text, 0, 0).contains(text.size()); }

 private:
  static constexpr int kRules = 3;
  struct Node {
    char kind = 'a';  // a: a letter; r: a rule; s: sequence; c: choice; *: repeat
    char letter = 'a';
    int rule = 0, least = 0, most = 0;
    std::vector<Node> parts = {};
  };
  static std::string name(int rule) { return rule == 0 ? "root" : fmt::format("r{}", rule); }
  std::uint64_t pick(std::uint64_t below) { return rng_.below(below); }

  Node letter() { return {.kind = 'a', .letter = pick(2) == 0 ? 'a' : 'b'}; }
  Node choice(int depth, int rule) {
    Node node{.kind = 'c'};
    for (std::uint64_t i = 0, count = 1 + pick(3); i < count; ++i)
      node.parts.push_back(sequence(depth, rule));
    return node;
  }
  // Only later rules may stand before the first letter.
  Node sequence(int depth, int rule) {
    Node node{.kind = 's'};
    if (pick(4) == 0 && rule + 1 < kRules) node.parts.push_back({.kind = 'r', .rule = rule + 1});
    node.parts.push_back(letter());
    for (std::uint64_t i = 0, count = pick(3); i < count; ++i) node.parts.push_back(part(depth, rule));
    return node;
  }
  Node part(int depth, int rule) {
    const std::uint64_t kind = pick(depth > 0 ? 4 : 2);
    if (kind == 0) return letter();
    if (kind == 1) return {.kind = 'r', .rule = static_cast<int>(pick(kRules))};
    if (kind == 2) return choice(depth - 1, rule);
    const int least = static_cast<int>(pick(3));
    return {.kind = '*',
            .least = least,
            .most = least + static_cast<int>(pick(3)),
            .parts = {choice(depth - 1, rule)}};
  }

  static std::string spelled(const Node& node) {
    if (node.kind == 'a') return fmt::format("\"{}\"", node.letter);
    if (node.kind == 'r') return name(node.rule);
    if (node.kind == '*') return fmt::format("{}{{{},{}}}", spelled(node.parts[0]), node.least, node.most);
    std::vector<std::string> parts;
    for (const Node& part : node.parts) parts.push_back(spelled(part));
    return "(" + joined(parts, node.kind == 's' ? " " : " | ") + ")";
  }

  using Ends = std::set<std::size_t>;
  Ends ends(const Node& node, std::string_view text, std::size_t at, int depth) const {
    if (depth > 60) return {};
    Ends result;
    if (node.kind == 'a') {
      if (at < text.size() && text[at] == node.letter) result.insert(at + 1);
    } else if (node.kind == 'r') {
      result = ends(rules_[static_cast<std::size_t>(node.rule)], text, at, depth + 1);
    } else if (node.kind == 'c') {
      for (const Node& part : node.parts) result.merge(ends(part, text, at, depth + 1));
    } else if (node.kind == 's') {
      result = {at};
      for (const Node& part : node.parts) result = after_each(result, part, text, depth);
    } else {
      Ends now = {at};
      for (int i = 0; i <= node.most; ++i) {
        if (i >= node.least) result.insert(now.begin(), now.end());
        now = after_each(now, node.parts[0], text, depth);
      }
    }
    return result;
  }
  Ends after_each(const Ends& starts, const Node& node, std::string_view text, int depth) const {
    Ends result;
    for (const std::size_t start : starts) result.merge(ends(node, text, start, depth + 1));
    return result;
  }

  Rng rng_;
  std::vector<Node> rules_;
};

TEST(Grammar, RandomGrammarsAgreeWithASearchOverAllSplits) {
  const std::vector<std::string> texts = texts_over("ab", 8);
  std::size_t accepted = 0, completed = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const RandomGrammar random(seed);
    SCOPED_TRACE(random.text());
    const Compiled compiled = from_gbnf(random.text());
    for (const std::string& text : texts) {
      const bool expected = random.matches(text);
      accepted += expected;
      ASSERT_EQ(compiled.accepts(text), expected) << text;
      for (std::size_t size = 0; expected && size < text.size(); ++size)
        ASSERT_NE(compiled.after(text.substr(0, size)), kNothing) << text;
    }
    for (const std::string_view text : {"", "a", "ab", "ba", "aab"}) {
      const Expr state = compiled.after(text);
      if (state == kNothing) continue;
      const std::optional<std::string> rest = completion(compiled, state, "ab");
      if (!rest) continue;
      ++completed;
      const std::string all = std::string(text) + *rest;
      EXPECT_TRUE(all.size() > 24 || random.matches(all)) << all;
      EXPECT_TRUE(compiled.accepts(all)) << all;
    }
  }
  EXPECT_GT(accepted, 400u) << "the test compares something";
  EXPECT_GT(completed, 100u);
}

TEST(Grammar, RegularExpressionsAgreeWithStdRegex) {
  const std::vector<std::string> texts = texts_over("ab1-", 5);
  for (const std::string pattern : {"a",          "",       "a*b",         "(a|b)*1", "(ab|a)(1|b1)?",
                                    "a{2,3}",     "a{2,}",  "(a{1,2}){2}", "[^a]*",   "[a-b1]{3}",
                                    "\\d+",       "\\w*-?", "\\D*a",       "(a*)*b",  "((a|ab)(1|b1))*",
                                    "a+?b",       ".*1.*",  "^a|b$",       "(?:a|)-", "[-a]+",
                                    "(a|b){0,2}1"}) {
    const Compiled compiled = from_regex(pattern);
    const std::regex expected(pattern);
    for (const std::string& text : texts)
      ASSERT_EQ(compiled.accepts(text), std::regex_match(text, expected))
          << pattern << " on '" << text << "'";
  }
}

TEST(Grammar, ASearchFindsAPatternAnywhereUnlessItIsAnchored) {
  const std::vector<std::string> texts = texts_over("ab1", 5);
  for (const std::string pattern :
       {"ab", "^ab", "ab$", "^(a|b1)$", "^a|b$", "(^a|b)1", "a*$", "^$", "1(a$|b)"}) {
    Compiled compiled;
    Grammar& grammar = *compiled.grammar;
    compiled.start = grammar.finish(
        regex_search_expr(grammar, pattern, [&](const CharSet& set) { return utf8_expr(grammar, set); }));
    const std::regex expected(pattern);
    for (const std::string& text : texts)
      ASSERT_EQ(compiled.accepts(text), std::regex_search(text, expected))
          << pattern << " on '" << text << "'";
  }
}

TEST(Grammar, CharactersAreUtf8) {
  const Compiled compiled = from_regex("[à-ö]+\\u{1F600}|\\ud83d\\ude01|[^\\x00-\\uffff]x");
  EXPECT_TRUE(compiled.accepts("àéö😀"));
  EXPECT_TRUE(compiled.accepts("😁"));
  EXPECT_TRUE(compiled.accepts("\U00010000x"));
  EXPECT_FALSE(compiled.accepts("÷😀"));
  EXPECT_FALSE(compiled.accepts("éx"));
  EXPECT_NE(compiled.after("\xC3"), kNothing) << "a part of a character";
  EXPECT_EQ(compiled.after("\xED\xA0"), kNothing) << "a surrogate";
}

TEST(Grammar, IntersectionsAndDifferencesOfRegularPartsAreExact) {
  Compiled compiled;
  Grammar& g = *compiled.grammar;
  const Expr letters = g.repeat(g.range('a', 'b'), 0, kUnbounded);
  const Expr even = g.repeat(g.repeat(g.range('a', 'b'), 2, 2), 0, kUnbounded);
  const Expr has_b = g.concat({letters, g.literal("b"), letters});
  compiled.start = g.finish(g.difference(g.intersection({even, has_b}), g.literal("ab")));
  for (const std::string& text : texts_over("ab", 6))
    EXPECT_EQ(compiled.accepts(text), text.size() % 2 == 0 && text.find('b') != text.npos && text != "ab")
        << text;
  EXPECT_EQ(g.intersection({g.literal("a"), even}), kNothing);
  EXPECT_EQ(g.difference(even, letters), kNothing);
}

TEST(Grammar, AnAmbiguousGrammarTakesLinearWork) {
  const Compiled compiled = from_gbnf("root ::= \"a\" root \"a\" | \"a\" root \"b\" | \"c\"\n");
  std::string text(200, 'a');
  text += "c" + std::string(200, 'b');
  EXPECT_TRUE(compiled.accepts(text));
  EXPECT_FALSE(compiled.accepts(text + "b"));
}

TEST(Grammar, RulesThatCannotEndAreRemoved) {
  const Compiled compiled = from_gbnf("root ::= \"a\" endless | \"b\"\nendless ::= \"x\" endless\n");
  EXPECT_EQ(compiled.after("a"), kNothing);
  EXPECT_TRUE(compiled.accepts("b"));
  EXPECT_EQ(from_gbnf("root ::= \"x\" root\n").start, kNothing);
}

TEST(Grammar, LeftRecursionIsRefusedWithTheNameOfTheRule) {
  EXPECT_NE(
      message_of([] { from_gbnf("root ::= list\nlist ::= list \",\" \"x\" | \"x\"\n"); }).find("rule list"),
      std::string::npos);
  const std::string hidden = message_of(
      [] { from_gbnf("root ::= one\none ::= [ ]* two\ntwo ::= three | \"x\"\nthree ::= \"\" one \"y\"\n"); });
  EXPECT_NE(hidden.find("left-recursive"), std::string::npos) << hidden;
}

TEST(Grammar, ReadsTheNotationOfLlamaCpp) {
  const Compiled compiled = from_gbnf(R"gbnf(# a comment
root   ::= (expr "=" ws term "\n")+
expr   ::= term ([-+*/] term)*   # another
term   ::= ident | num | "(" ws expr ")" ws
ident  ::= [a-z] [a-z0-9_]* ws
num    ::= [0-9]{1,3} ws
ws     ::= [ \t\n]*
)gbnf");
  EXPECT_TRUE(compiled.accepts("1+(a_2*33)= x\n"));
  EXPECT_TRUE(compiled.accepts("1=2\n3=4\n"));
  EXPECT_FALSE(compiled.accepts("1234=2\n"));
  EXPECT_FALSE(compiled.accepts("1=2"));
  const Compiled escapes = from_gbnf("root ::= \"\\x41\\u00e9\\\"\" [^\\x00-\\x7f\\]] . [a-]?\n");
  EXPECT_TRUE(escapes.accepts("Aé\"ü\n-"));
  EXPECT_FALSE(escapes.accepts("Aé\"u\n"));
}

TEST(Grammar, ErrorsOfTextsGiveLineAndColumn) {
  EXPECT_EQ(message_of([] { from_gbnf("root ::= \"a\"\nnext := b\n"); }), "grammar:2:6: expected '::='");
  EXPECT_EQ(message_of([] { from_gbnf("root ::= other\n"); }),
            "grammar: rule 'other' is used but not defined");
  for (const std::string_view wrong :
       {"root ::= \"a", "root ::= (\"a\"", "root ::= [z-a]", "root ::= \"a\"{3,2}", "root ::= <think>",
        "root ::= \"\\q\"", "x ::= \"a\"", "root ::= \"\xff\"", "root ::= \"a\"\nroot ::= \"b\"",
        "root ::= \"a\"{9999999}"})
    EXPECT_THROW(from_gbnf(wrong), Error) << wrong;
  for (const std::string_view wrong :
       {"(", ")", "[", "a**", "*a", "\\", "a{3,2}", "(?=a)", "(?!a)", "(?<=a)", "\\bx", "(a)\\1", "[b-a]",
        "\\p{Greek}", "\\q", "x^*", "\\u{110000}", "\\ud800"})
    EXPECT_THROW(from_regex(wrong), Error) << wrong;
  EXPECT_THROW(from_regex(std::string(1 << 20, 'a')), Error);
  EXPECT_THROW(from_regex(std::string(5000, '(')), Error);
  EXPECT_THROW(from_gbnf("root ::= " + std::string(5000, '(')), Error);
}

TEST(Grammar, WorkAndMemoryAreLimited) {
  // The states of this pattern are sets of 200 places.
  const Compiled compiled = from_regex("(a|b)*a(a|b){200}");
  Rng rng(1, 0);
  std::string text;
  for (int i = 0; i < 3000; ++i) text += rng.below(2) == 0 ? 'a' : 'b';
  compiled.grammar->allow_work(100'000);
  EXPECT_THROW(
      {
        Expr state = compiled.start;
        for (const char c : text) state = compiled.grammar->step(state, static_cast<unsigned char>(c));
      },
      Error);
  EXPECT_LT(compiled.grammar->memory_bytes(), std::size_t{64} << 20);
  const Compiled nested = from_gbnf("root ::= \"(\" root \")\" | \"x\"\n");
  EXPECT_NE(nested.after(std::string(20'000, '(')), kNothing) << "depth of nesting alone is no work";
}

TEST(Grammar, CountsThatAreFarFromTheirEndShareAState) {
  const Compiled compiled = from_regex("x[a-z]{10,500}!");
  Grammar& grammar = *compiled.grammar;
  const Expr early = compiled.after("x" + std::string(40, 'a')),
             later = compiled.after("x" + std::string(300, 'a'));
  EXPECT_NE(early, later);
  EXPECT_EQ(grammar.within(early, 16), grammar.within(later, 16));
  EXPECT_NE(grammar.within(later, 16), grammar.within(compiled.after("x" + std::string(495, 'a')), 16));
}

}  // namespace
}  // namespace thimble
