// A grammar over bytes. It is an automaton whose states are expressions.
//
// An expression stands for a set of byte strings. The step from expression e by byte b is the
// derivative of e by b: the expression for what may follow b. A text belongs to the grammar if the
// expression that is left after its last byte accepts the empty string.
//
//   Grammar grammar;
//   const Expr digits = grammar.repeat(grammar.range('0', '9'), 1, kUnbounded);
//   Expr state = grammar.step(digits, '7');         // accepts(state): "7" is complete
//   state = grammar.step(state, 'x');               // kNothing: no text begins with "7x"
//
// Equal expressions have equal ids, so derivatives are computed once for each expression, and masks
// can be cached by id. A rule may refer to itself anywhere except at its beginning; the expression
// then plays the role of a parser's stack, and an ambiguous grammar is an expression with several
// alternatives. Every expression except kNothing stands for at least one string, so a step that
// does not return kNothing can always be completed.
//
// Memory and work are limited: an expression that needs more throws an Error. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace thimble {

using Expr = std::uint32_t;
inline constexpr Expr kNothing = 0;  // no string at all
inline constexpr Expr kEpsilon = 1;  // the empty string only

inline constexpr std::uint32_t kUnbounded = 0xffffffff;

class ByteSet {
 public:
  static ByteSet all();
  static ByteSet range(unsigned char first, unsigned char last);

  bool has(unsigned char byte) const { return words_[byte / 64] >> byte % 64 & 1; }
  void add(unsigned char byte) { words_[byte / 64] |= std::uint64_t{1} << byte % 64; }
  bool none() const { return (words_[0] | words_[1] | words_[2] | words_[3]) == 0; }
  ByteSet operator~() const;
  ByteSet& operator&=(const ByteSet& other);
  ByteSet& operator|=(const ByteSet& other);
  bool operator==(const ByteSet&) const = default;
  bool operator<(const ByteSet& other) const { return words_ < other.words_; }

 private:
  std::array<std::uint64_t, 4> words_{};
};

class Grammar {
 public:
  Grammar();

  Expr byte_set(const ByteSet& bytes);
  Expr range(unsigned char first, unsigned char last) { return byte_set(ByteSet::range(first, last)); }
  Expr literal(std::string_view text);
  Expr concat(Expr first, Expr second);
  Expr concat(std::initializer_list<Expr> parts);
  Expr alternatives(std::vector<Expr> parts);
  Expr optional(Expr part) { return alternatives({part, kEpsilon}); }
  Expr repeat(Expr part, std::uint32_t least, std::uint32_t most);  // most may be kUnbounded
  // Strings that belong to all parts, or to the first expression and not to the second. The parts
  // must be regular: a rule that they refer to may call itself at its end only.
  Expr intersection(std::vector<Expr> parts);
  Expr difference(Expr of, Expr without);
  // The same strings. Marks a unit that masks cache separately from what follows, such as a string.
  Expr atom(Expr part);

  // A rule is declared before it is defined, so that it can refer to itself. `nullable`: whether it
  // will accept the empty string.
  std::uint32_t declare(std::string name, bool nullable = false);
  void define(std::uint32_t rule, Expr body);
  Expr ref(std::uint32_t rule);

  // Call once after the last rule. Removes what cannot be completed and returns the start state
  // for `root`; kNothing if there is no string. Throws an Error if a rule is left-recursive, or if
  // it accepts the empty string against its declaration.
  Expr finish(Expr root);

  Expr step(Expr state, unsigned char byte) {
    const Expr next = row(state)[byte];
    return next == kUnknown ? compute(state, byte) : next;
  }
  bool accepts(Expr state) const { return nodes_[state].nullable; }

  // For masks, which look inside expressions.
  enum class Kind : std::uint8_t {
    nothing,
    epsilon,
    bytes,
    concat,
    alternatives,
    intersection,
    complement,
    repeat,
    ref,
    atom
  };
  Kind kind(Expr e) const { return nodes_[e].kind; }
  Expr first(Expr e) const { return nodes_[e].a; }   // of concat, and the content of an atom
  Expr second(Expr e) const { return nodes_[e].b; }  // of concat
  Expr body(Expr e) const { return rules_[nodes_[e].a].body; }
  std::span<const Expr> children(Expr e) const;
  // An expression that allows the same texts of up to `bytes` bytes to begin, whose counts do not
  // exceed that number. Strings with different lengths left then share a mask.
  Expr within(Expr e, std::uint32_t bytes);

  // Work is counted in units of roughly 0.1 us. Throws an Error when more than `units` are spent
  // until the next call.
  void allow_work(std::size_t units);
  void spend(std::size_t units);

  std::size_t size() const { return nodes_.size(); }
  std::size_t memory_bytes() const;
  // What was added since finish(), and its removal: afterwards only expressions made before are
  // valid.
  std::size_t grown_bytes() const;
  void forget();

 private:
  struct Node {
    Kind kind = Kind::nothing;
    bool nullable = false;
    Expr a = 0, b = 0;                      // parts; a: index of a byte set or rule
    std::uint32_t least = 0, most = 0;      // of repeat
    std::uint32_t children = 0, count = 0;  // of alternatives and intersections
    std::uint32_t row = kNoRow;
  };
  struct Rule {
    std::string name;
    bool nullable = false, defined = false;
    Expr body = kNothing;
  };
  struct Derivative {
    Expr expr;
    ByteSet same;  // bytes with this derivative
  };
  static constexpr Expr kUnknown = 0xffffffff;
  static constexpr std::uint32_t kNoRow = 0xffffffff;
  static constexpr std::size_t kRowSize = 256;

  Expr intern(const Node& node, std::span<const Expr> children = {});
  void fill_table(std::size_t size);
  std::uint64_t hash_of(const Node& node, std::span<const Expr> children) const;
  bool equal(const Node& node, std::span<const Expr> children, Expr known) const;
  Expr complement(Expr part);
  void merge_rests(std::vector<Expr>& parts);
  Expr followed_by(Expr first, Expr second);
  Expr unchecked_intersection(std::vector<Expr> parts);
  bool is_live(Expr e);
  Expr* row(Expr e);
  Expr compute(Expr e, unsigned char byte);
  Derivative derive(Expr e, unsigned char byte);
  Derivative derive_node(Expr e, unsigned char byte);
  Derivative derive_intersection(Expr e, unsigned char byte);
  Expr shortened(Expr e, std::uint32_t bytes, int parts);
  Expr rebuilt(Expr e, const std::vector<Expr>& now);
  std::vector<bool> productive() const;
  void check_rules() const;
  void left_refs(Expr e, std::vector<std::uint32_t>& rules) const;

  std::vector<Node> nodes_;
  std::vector<Expr> children_;
  std::vector<Expr> table_;  // open addressing by hash; kNothing: free
  std::vector<ByteSet> sets_;
  std::map<ByteSet, std::uint32_t> set_ids_;
  std::vector<Rule> rules_;
  std::vector<std::vector<Expr>> rows_;  // in blocks; the derivatives of a node by byte
  std::uint32_t used_rows_ = 0;
  std::unordered_map<Expr, bool> live_;                 // of intersections
  std::unordered_map<std::uint64_t, Derivative> memo_;  // of one call of compute()
  std::unordered_map<std::uint64_t, Expr> within_;
  std::size_t first_nodes_ = 0, first_children_ = 0;  // after finish()
  std::size_t work_left_ = 0;
  int depth_ = 0;
};

}  // namespace thimble
