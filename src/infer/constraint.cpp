#include "infer/constraint.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "infer/grammar_text.h"
#include "infer/json_schema.h"

namespace thimble {

namespace {

constexpr std::size_t kMaskUnits = 200'000;  // about 20 ms
constexpr std::size_t kMaskCacheBytes = 1 << 19;
constexpr std::size_t kFewestMasks = 16;
constexpr std::size_t kMostAtoms = 64;
constexpr std::size_t kFewLongTokens = 64, kTokensPerLongToken = 256;
constexpr std::size_t kMaxExits = 2048;
constexpr std::size_t kMaxTokenBytes = 4096;
constexpr std::size_t kVisitsPerUnit = 32;
constexpr std::size_t kRecentConstraints = 16;
constexpr std::size_t kMaxGrownBytes = 4 << 20;
constexpr std::size_t kReplayBytes = 256;

TokenTree tree_of(const std::vector<std::string>& texts) {
  std::vector<TokenId> order;
  for (std::size_t id = 0; id < texts.size(); ++id)
    if (!texts[id].empty()) order.push_back(static_cast<TokenId>(id));
  const auto text_of = [&](TokenId id) -> const std::string& { return texts[static_cast<std::size_t>(id)]; };
  std::ranges::stable_sort(order, [&](TokenId a, TokenId b) { return text_of(a) < text_of(b); });

  TokenTree tree;
  tree.nodes.push_back({});
  std::vector<std::uint32_t> path = {0};  // from the root to the node of the previous token
  std::string_view previous;
  const auto close = [&](std::size_t depth) {
    for (; path.size() > depth + 1; path.pop_back())
      tree.nodes[path.back()].end = static_cast<std::uint32_t>(tree.nodes.size());
  };
  for (const TokenId id : order) {
    const std::string& text = text_of(id);
    const auto shared =
        static_cast<std::size_t>(std::ranges::mismatch(previous, text).in1 - previous.begin());
    close(shared);
    for (std::size_t depth = shared; depth < text.size(); ++depth) {
      path.push_back(static_cast<std::uint32_t>(tree.nodes.size()));
      tree.nodes.push_back({.byte = static_cast<unsigned char>(text[depth]),
                            .depth = static_cast<std::uint16_t>(depth + 1),
                            .first_token = static_cast<std::uint32_t>(tree.tokens.size())});
    }
    tree.tokens.push_back(id);
    tree.longest = std::max(tree.longest, text.size());
    previous = text;
  }
  close(0);
  tree.nodes[0].end = static_cast<std::uint32_t>(tree.nodes.size());
  tree.nodes.push_back({.first_token = static_cast<std::uint32_t>(tree.tokens.size())});
  return tree;
}

Vocabulary::Trees trees_of(const std::vector<std::string>& texts) {
  std::vector<std::size_t> sizes;
  for (const std::string& text : texts) sizes.push_back(text.size());
  std::ranges::sort(sizes);
  const std::size_t few = std::max(kFewLongTokens, texts.size() / kTokensPerLongToken);
  const std::size_t shorter = sizes.size() > few ? sizes[sizes.size() - 1 - few] : 0;
  std::vector<std::string> parts[2] = {texts, texts};
  for (std::size_t id = 0; id < texts.size(); ++id) parts[texts[id].size() > shorter ? 0 : 1][id].clear();
  return {tree_of(parts[0]), tree_of(parts[1])};
}

}  // namespace

void TokenMask::add(const TokenMask& other) {
  for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
}

bool TokenMask::none() const {
  return std::ranges::all_of(words_, [](std::uint64_t word) { return word == 0; });
}

std::size_t TokenMask::count() const {
  return std::accumulate(words_.begin(), words_.end(), std::size_t{0},
                         [](std::size_t sum, std::uint64_t word) {
                           return sum + static_cast<std::size_t>(std::popcount(word));
                         });
}

Vocabulary::Vocabulary(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  std::vector<std::string> inner(size()), first(size());
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const TokenType type = tokenizer.token_type(id);
    if (type == TokenType::control || type == TokenType::unknown || type == TokenType::unused) continue;
    const auto at = static_cast<std::size_t>(id);
    tokenizer.append_token(id, false, inner[at]);
    tokenizer.append_token(id, true, first[at]);
    if (std::max(inner[at].size(), first[at].size()) > kMaxTokenBytes) inner[at] = first[at] = "";
  }
  inner_ = trees_of(inner);
  if (first != inner) first_ = trees_of(first);
}

template <class Value>
std::shared_ptr<const Value> Constraint::Recent<Value>::find(std::uint64_t key) {
  const auto found = index.find(key);
  if (found == index.end()) return nullptr;
  items.splice(items.begin(), items, found->second);
  return found->second->second;
}

template <class Value>
void Constraint::Recent<Value>::add(std::uint64_t key, std::shared_ptr<const Value> value, std::size_t most) {
  while (items.size() >= most) {
    index.erase(items.back().first);
    items.pop_back();
  }
  items.emplace_front(key, std::move(value));
  index[key] = items.begin();
}

Constraint::Constraint(std::unique_ptr<Grammar> grammar, Expr start,
                       std::shared_ptr<const Vocabulary> vocabulary)
    : grammar_(std::move(grammar)),
      start_(start),
      vocabulary_(std::move(vocabulary)),
      most_masks_(std::max(kFewestMasks, kMaskCacheBytes / (vocabulary_->size() / 8 + 1))) {
  check(start_ != kNothing, Hint{"its conditions contradict each other"}, "no text fulfils the constraint");
  mask(start_, false);
  if (vocabulary_->has_own_first()) mask(start_, true);
}

Expr Constraint::advance(Expr state, std::string_view bytes) {
  grammar_->allow_work(kMaskUnits);
  for (const char byte : bytes) {
    state = grammar_->step(state, static_cast<unsigned char>(byte));
    if (state == kNothing) break;
  }
  return state;
}

Expr Constraint::advance(Expr state, TokenId id, bool first) {
  bytes_.clear();
  vocabulary_->tokenizer().append_token(id, first, bytes_);
  return advance(state, bytes_);
}

std::shared_ptr<const TokenMask> Constraint::mask(Expr state, bool first) {
  first = first && vocabulary_->has_own_first();
  const std::uint64_t key = std::uint64_t{state} << 1 | static_cast<std::uint64_t>(first);
  if (auto known = masks_.find(key)) return known;
  grammar_->allow_work(kMaskUnits);
  std::shared_ptr<const TokenMask> mask = short_mask(state, first);
  const TokenTree& longer = vocabulary_->trees(first).longer;
  if (!longer.tokens.empty()) {
    auto all = std::make_shared<TokenMask>(*mask);
    walk(longer, 0, state, *all, nullptr);
    mask = std::move(all);
  }
  masks_.add(key, mask, most_masks_);
  return mask;
}

std::shared_ptr<const TokenMask> Constraint::short_mask(Expr state, bool first) {
  const std::size_t longest = vocabulary_->trees(first).shorter.longest;
  state = grammar_->within(state, static_cast<std::uint32_t>(longest));
  const std::uint64_t key = std::uint64_t{state} << 1 | static_cast<std::uint64_t>(first);
  if (auto known = short_masks_.find(key)) return known;
  auto mask = std::make_shared<TokenMask>(vocabulary_->size());
  add_short_tokens(state, first, *mask);
  short_masks_.add(key, mask, most_masks_);
  return mask;
}

// Parts that begin with an atom share the atom's mask. The other alternatives are walked together.
void Constraint::add_short_tokens(Expr state, bool first, TokenMask& mask) {
  using Kind = Grammar::Kind;
  Grammar& grammar = *grammar_;
  std::vector<Expr> open = {state}, others;
  while (!open.empty()) {
    const Expr e = open.back();
    open.pop_back();
    const Kind kind = grammar.kind(e);
    if (kind == Kind::alternatives) {
      for (const Expr child : grammar.children(e)) open.push_back(child);
    } else if (kind == Kind::ref) {
      open.push_back(grammar.body(e));
    } else if (kind == Kind::atom) {
      add_atom(e, kEpsilon, first, mask);
    } else if (kind == Kind::concat && grammar.kind(grammar.first(e)) == Kind::atom) {
      const Expr rest = grammar.second(e);
      if (grammar.accepts(grammar.first(e))) open.push_back(rest);
      add_atom(grammar.first(e), rest, first, mask);
    } else {
      others.push_back(e);
    }
  }
  if (!others.empty())
    walk(vocabulary_->trees(first).shorter, 0, grammar.alternatives(std::move(others)), mask, nullptr);
}

void Constraint::add_atom(Expr atom, Expr rest, bool first, TokenMask& mask) {
  const TokenTree& tree = vocabulary_->trees(first).shorter;
  const auto known = atom_mask(atom, first);
  if (!known) {  // too many exits
    walk(tree, 0, grammar_->concat(grammar_->first(atom), rest), mask, nullptr);
    return;
  }
  mask.add(known->live);
  if (rest == kEpsilon) return;
  for (const std::uint32_t exit : known->exits) walk(tree, exit, rest, mask, nullptr);
}

std::shared_ptr<const Constraint::AtomMask> Constraint::atom_mask(Expr atom, bool first) {
  const TokenTree& tree = vocabulary_->trees(first).shorter;
  const std::uint64_t key = std::uint64_t{atom} << 1 | static_cast<std::uint64_t>(first);
  if (const auto known = atoms_.find(key)) return known->live.words().empty() ? nullptr : known;
  auto made = std::make_shared<AtomMask>(AtomMask{TokenMask(vocabulary_->size()), {}});
  if (!walk(tree, 0, atom, made->live, &made->exits)) *made = AtomMask{TokenMask(0), {}};
  made->exits.shrink_to_fit();
  atoms_.add(key, made, kMostAtoms);
  return made->live.words().empty() ? nullptr : made;
}

// Adds the tokens below the node `from` whose remaining bytes `state` allows. Returns false if
// there are too many exits.
bool Constraint::walk(const TokenTree& tree, std::uint32_t from, Expr state, TokenMask& mask,
                      std::vector<std::uint32_t>* exits) {
  states_.resize(tree.longest + 1);
  states_[tree.nodes[from].depth] = state;
  std::size_t visits = 0;
  for (std::uint32_t at = from + 1; at < tree.nodes[from].end;) {
    const TokenTree::Node& node = tree.nodes[at];
    if (++visits % kVisitsPerUnit == 0) grammar_->spend(1);
    const Expr next = grammar_->step(states_[node.depth - 1u], node.byte);
    if (next == kNothing) {
      at = node.end;
      continue;
    }
    for (std::uint32_t i = node.first_token; i < tree.nodes[at + 1].first_token; ++i)
      mask.add(tree.tokens[i]);
    if (exits && grammar_->accepts(next) && node.end > at + 1) {
      if (exits->size() >= kMaxExits) return false;
      exits->push_back(at);
    }
    states_[node.depth] = next;
    at = next == kEpsilon ? node.end : at + 1;
  }
  return true;
}

void Constraint::limit_memory() {
  if (grammar_->grown_bytes() <= kMaxGrownBytes) return;
  grammar_->forget();
  masks_ = {};
  short_masks_ = {};
  atoms_ = {};
  ++epoch_;
}

ConstrainedText::ConstrainedText(std::shared_ptr<Constraint> constraint)
    : constraint_(std::move(constraint)), state_(constraint_->start()), epoch_(constraint_->epoch()) {}

std::shared_ptr<const TokenMask> ConstrainedText::mask(bool first) {
  constraint_->limit_memory();
  if (epoch_ != constraint_->epoch()) {
    state_ = constraint_->start();
    epoch_ = constraint_->epoch();
    for (std::size_t at = 0; at < text_.size(); at += kReplayBytes)
      state_ = constraint_->advance(state_, std::string_view(text_).substr(at, kReplayBytes));
  }
  return constraint_->mask(state_, first);
}

void ConstrainedText::advance(TokenId id, bool first) {
  state_ = constraint_->advance(state_, id, first);
  constraint_->vocabulary().tokenizer().append_token(id, first, text_);
}

std::shared_ptr<const Vocabulary> ConstraintCompiler::vocabulary() {
  const std::lock_guard lock(mutex_);
  if (!vocabulary_) vocabulary_ = std::make_shared<Vocabulary>(tokenizer_);
  return vocabulary_;
}

std::shared_ptr<Constraint> ConstraintCompiler::compile(const ConstraintSource& source) {
  std::string key = std::to_string(static_cast<int>(source.kind)) + source.text;
  for (const std::string& choice : source.choices) key += std::to_string(choice.size()) + ":" + choice;
  {
    const std::lock_guard lock(mutex_);
    const auto known = std::ranges::find(recent_, key, &decltype(recent_)::value_type::first);
    if (known != recent_.end()) {
      recent_.splice(recent_.begin(), recent_, known);
      return known->second;
    }
  }
  auto grammar = std::make_unique<Grammar>();
  Expr root = kNothing;
  switch (source.kind) {
    case ConstraintKind::json_object:
      root = json_object_expr(*grammar);
      break;
    case ConstraintKind::json_schema:
      root = json_schema_expr(*grammar, source.text);
      break;
    case ConstraintKind::gbnf:
      root = gbnf_expr(*grammar, source.text);
      break;
    case ConstraintKind::regex:
      root = regex_expr(*grammar, source.text);
      break;
    case ConstraintKind::choice:
      root = choice_expr(*grammar, source.choices);
      break;
  }
  const Expr start = grammar->finish(root);
  auto constraint = std::make_shared<Constraint>(std::move(grammar), start, vocabulary());
  const std::lock_guard lock(mutex_);
  recent_.emplace_front(std::move(key), constraint);
  if (recent_.size() > kRecentConstraints) recent_.pop_back();
  return constraint;
}

}  // namespace thimble
