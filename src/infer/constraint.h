// Restricts generated text to a grammar: JSON Schema, GBNF, a regular expression, or a list of
// choices.
//
//   ConstraintCompiler compiler(*tokenizer);
//   request.constraint = compiler.compile({ConstraintKind::regex, "[0-9]+"});
//
// A Constraint computes for each of its states the set of tokens that may come next. A token may if
// its bytes can be continued to a complete text, so a token may cover several symbols of the
// grammar, or a part of a character. The sets are exact for every kind of tokenizer. Tokens without
// text (control, unknown, unused) never belong to one. An end token is allowed by the caller, in
// the states that accept.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "infer/grammar.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// One bit for each id.
class TokenMask {
 public:
  explicit TokenMask(std::size_t ids = 0) : words_((ids + 63) / 64) {}

  bool has(TokenId id) const {
    const auto at = static_cast<std::size_t>(id);
    return at / 64 < words_.size() && (words_[at / 64] >> at % 64 & 1) != 0;
  }
  void add(TokenId id) {
    words_[static_cast<std::size_t>(id) / 64] |= std::uint64_t{1} << static_cast<std::size_t>(id) % 64;
  }
  void add(const TokenMask& other);
  bool none() const;
  std::size_t count() const;
  std::span<const std::uint64_t> words() const { return words_; }

 private:
  std::vector<std::uint64_t> words_;
};

// The texts of a vocabulary as a tree of bytes, in depth-first order. Node 0 is the empty text.
struct TokenTree {
  struct Node {
    unsigned char byte = 0;
    std::uint16_t depth = 0;
    std::uint32_t end = 0;          // index after its last descendant
    std::uint32_t first_token = 0;  // its tokens are tokens[first_token .. next node's first_token)
  };
  std::vector<Node> nodes;  // and one more node at the end
  std::vector<TokenId> tokens;

  std::size_t longest = 0;  // bytes
};

class Vocabulary {
 public:
  explicit Vocabulary(const Tokenizer& tokenizer);  // which must outlive the object

  const Tokenizer& tokenizer() const { return tokenizer_; }
  std::size_t size() const { return static_cast<std::size_t>(tokenizer_.vocab_size()); }
  // Nearly all tokens are short. States that differ only in counts beyond the longest of them share
  // a mask, and the few long tokens are checked for each state.
  struct Trees {
    TokenTree shorter, longer;
  };
  // `first`: of the tokens that begin a text, where SentencePiece drops a leading space.
  const Trees& trees(bool first) const { return first && first_ ? *first_ : inner_; }
  bool has_own_first() const { return first_.has_value(); }

 private:
  const Tokenizer& tokenizer_;
  Trees inner_;
  std::optional<Trees> first_;  // absent if they equal inner_
};

class Constraint {
 public:
  // Throws an Error if the grammar has no string, or if its first mask is too much work.
  Constraint(std::unique_ptr<Grammar> grammar, Expr start, std::shared_ptr<const Vocabulary> vocabulary);

  // The following functions must be called by one thread at a time. Those that compute states throw
  // an Error if one needs too much work or memory.
  Expr start() const { return start_; }
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  bool accepts(Expr state) const { return grammar_->accepts(state); }
  // Returns kNothing if the token is not allowed.
  Expr advance(Expr state, TokenId id, bool first);
  Expr advance(Expr state, std::string_view bytes);
  std::shared_ptr<const TokenMask> mask(Expr state, bool first);

  // Forgets states and masks if they take too much memory. States other than start() are then
  // invalid, and the epoch is another one.
  void limit_memory();
  std::uint64_t epoch() const { return epoch_; }

 private:
  // The tokens that an atom allows, whatever follows it, and the nodes at which it may be complete
  // and something else may follow.
  struct AtomMask {
    TokenMask live;
    std::vector<std::uint32_t> exits;
  };
  // Values by key, of which those used last are kept.
  template <class Value>
  struct Recent {
    using Item = std::pair<std::uint64_t, std::shared_ptr<const Value>>;
    std::list<Item> items;  // the last used first
    std::unordered_map<std::uint64_t, typename std::list<Item>::iterator> index;

    std::shared_ptr<const Value> find(std::uint64_t key);
    void add(std::uint64_t key, std::shared_ptr<const Value> value, std::size_t most);
  };

  std::shared_ptr<const TokenMask> short_mask(Expr state, bool first);
  void add_short_tokens(Expr state, bool first, TokenMask& mask);
  void add_atom(Expr atom, Expr rest, bool first, TokenMask& mask);
  std::shared_ptr<const AtomMask> atom_mask(Expr atom, bool first);
  bool walk(const TokenTree& tree, std::uint32_t from, Expr state, TokenMask& mask,
            std::vector<std::uint32_t>* exits);

  std::unique_ptr<Grammar> grammar_;
  Expr start_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::size_t most_masks_;
  Recent<TokenMask> masks_, short_masks_;
  Recent<AtomMask> atoms_;
  std::vector<Expr> states_;  // by depth in the tree
  std::string bytes_;
  std::uint64_t epoch_ = 0;
};

// A text that is being generated under a constraint.
class ConstrainedText {
 public:
  explicit ConstrainedText(std::shared_ptr<Constraint> constraint);

  // `first`: the next token begins a text.
  std::shared_ptr<const TokenMask> mask(bool first);
  void advance(TokenId id, bool first);
  bool accepts() const { return constraint_->accepts(state_); }  // after mask()
  bool complete() const { return state_ == kEpsilon; }           // nothing can follow

 private:
  std::shared_ptr<Constraint> constraint_;
  Expr state_;
  std::uint64_t epoch_;
  std::string text_;  // to find the state again in another epoch
};

enum class ConstraintKind { json_object, json_schema, gbnf, regex, choice };

struct ConstraintSource {
  ConstraintKind kind = ConstraintKind::json_object;
  std::string text = {};                  // of gbnf, regex; of json_schema: the schema as JSON
  std::vector<std::string> choices = {};  // of choice
};

// Compiles constraints for one tokenizer, and keeps the last ones with their masks. Thread-safe.
class ConstraintCompiler {
 public:
  explicit ConstraintCompiler(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // Throws an Error that names what is wrong and where.
  std::shared_ptr<Constraint> compile(const ConstraintSource& source);

 private:
  std::shared_ptr<const Vocabulary> vocabulary();

  const Tokenizer& tokenizer_;
  std::mutex mutex_;
  std::shared_ptr<const Vocabulary> vocabulary_;  // made when it is first needed
  std::list<std::pair<std::string, std::shared_ptr<Constraint>>> recent_;
};

}  // namespace thimble
