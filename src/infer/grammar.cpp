#include "infer/grammar.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace thimble {

namespace {

constexpr std::size_t kMaxNodes = 160'000;
constexpr std::size_t kMaxChildren = 500'000;
constexpr std::uint32_t kMaxRows = 2'048;  // of 1 KiB
constexpr std::size_t kRowsPerBlock = 64;
constexpr int kMaxDepth = 1500;  // recursion of derivatives
constexpr std::size_t kFirstTable = 1024;
constexpr int kShortenedParts = 32;  // how far within() looks
constexpr std::uint32_t kShortenedAlternatives = 8;
constexpr std::size_t kBuildUnits = 400'000;

[[noreturn]] void too_complex(std::string_view what) {
  fail(Hint{"simplify its alternatives, or lower its counts"}, "the constraint is too complex: {}", what);
}

std::uint32_t one_less(std::uint32_t count) {
  return count == kUnbounded || count == 0 ? count : count - 1;
}

}  // namespace

ByteSet ByteSet::all() {
  ByteSet set;
  set.words_.fill(~std::uint64_t{0});
  return set;
}

ByteSet ByteSet::range(unsigned char first, unsigned char last) {
  ByteSet set;
  for (unsigned byte = first; byte <= last; ++byte) set.add(static_cast<unsigned char>(byte));
  return set;
}

ByteSet ByteSet::operator~() const {
  ByteSet set;
  for (std::size_t i = 0; i < words_.size(); ++i) set.words_[i] = ~words_[i];
  return set;
}

ByteSet& ByteSet::operator&=(const ByteSet& other) {
  for (std::size_t i = 0; i < words_.size(); ++i) words_[i] &= other.words_[i];
  return *this;
}

ByteSet& ByteSet::operator|=(const ByteSet& other) {
  for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  return *this;
}

Grammar::Grammar() : table_(kFirstTable, kNothing) {
  nodes_.push_back({.kind = Kind::nothing});
  nodes_.push_back({.kind = Kind::epsilon, .nullable = true});
  allow_work(kBuildUnits);
}

// Interning.

std::uint64_t Grammar::hash_of(const Node& node, std::span<const Expr> children) const {
  std::uint64_t hash = static_cast<std::uint64_t>(node.kind);
  const auto mix = [&](std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  };
  mix(node.a);
  mix(node.b);
  mix(node.least);
  mix(node.most);
  for (const Expr child : children) mix(child);
  return hash;
}

bool Grammar::equal(const Node& node, std::span<const Expr> children, Expr known) const {
  const Node& other = nodes_[known];
  return node.kind == other.kind && node.a == other.a && node.b == other.b && node.least == other.least &&
         node.most == other.most && std::ranges::equal(children, this->children(known));
}

Expr Grammar::intern(const Node& node, std::span<const Expr> children) {
  const std::size_t mask = table_.size() - 1;
  std::size_t at = hash_of(node, children) & mask;
  for (; table_[at] != kNothing; at = (at + 1) & mask)
    if (equal(node, children, table_[at])) return table_[at];
  if (nodes_.size() >= kMaxNodes || children_.size() + children.size() > kMaxChildren)
    too_complex("it needs too much memory");
  const auto id = static_cast<Expr>(nodes_.size());
  nodes_.push_back(node);
  nodes_.back().children = static_cast<std::uint32_t>(children_.size());
  nodes_.back().count = static_cast<std::uint32_t>(children.size());
  children_.insert(children_.end(), children.begin(), children.end());
  table_[at] = id;
  if (2 * nodes_.size() > table_.size()) fill_table(2 * table_.size());
  return id;
}

void Grammar::fill_table(std::size_t size) {
  table_.assign(size, kNothing);
  const std::size_t mask = table_.size() - 1;
  for (Expr e = kEpsilon + 1; e < nodes_.size(); ++e) {
    std::size_t at = hash_of(nodes_[e], children(e)) & mask;
    while (table_[at] != kNothing) at = (at + 1) & mask;
    table_[at] = e;
  }
}

std::span<const Expr> Grammar::children(Expr e) const {
  return std::span(children_).subspan(nodes_[e].children, nodes_[e].count);
}

std::size_t Grammar::memory_bytes() const {
  return nodes_.capacity() * sizeof(Node) + children_.capacity() * sizeof(Expr) +
         table_.capacity() * sizeof(Expr) + rows_.size() * kRowsPerBlock * kRowSize * sizeof(Expr) +
         (live_.size() + within_.size()) * 48;
}

std::size_t Grammar::grown_bytes() const {
  return (nodes_.size() - first_nodes_) * (sizeof(Node) + 4 * sizeof(Expr)) +
         (children_.size() - first_children_) * sizeof(Expr) + used_rows_ * kRowSize * sizeof(Expr) +
         (live_.size() + within_.size()) * 48;
}

void Grammar::forget() {
  nodes_.resize(first_nodes_);
  nodes_.shrink_to_fit();
  children_.resize(first_children_);
  children_.shrink_to_fit();
  for (Node& node : nodes_) node.row = kNoRow;
  rows_.clear();
  used_rows_ = 0;
  live_.clear();
  within_.clear();
  fill_table(std::bit_ceil(4 * nodes_.size() + kFirstTable));
}

void Grammar::allow_work(std::size_t units) {
  work_left_ = units;
  depth_ = 0;  // an exception may have left it behind
}

void Grammar::spend(std::size_t units) {
  if (units > work_left_) too_complex("a step takes too long");
  work_left_ -= units;
}

// Constructors.

Expr Grammar::byte_set(const ByteSet& bytes) {
  if (bytes.none()) return kNothing;
  const auto [found, added] = set_ids_.try_emplace(bytes, static_cast<std::uint32_t>(sets_.size()));
  if (added) sets_.push_back(bytes);
  return intern({.kind = Kind::bytes, .a = found->second});
}

Expr Grammar::literal(std::string_view text) {
  Expr result = kEpsilon;
  for (std::size_t i = text.size(); i-- > 0;)
    result = concat(range(static_cast<unsigned char>(text[i]), static_cast<unsigned char>(text[i])), result);
  return result;
}

// A chain of concatenations is nested to the right, so that a step changes its first part only.
Expr Grammar::concat(Expr first, Expr second) {
  if (first == kNothing || second == kNothing) return kNothing;
  if (first == kEpsilon) return second;
  if (second == kEpsilon) return first;
  std::vector<Expr> heads;
  while (kind(first) == Kind::concat) {
    heads.push_back(nodes_[first].a);
    first = nodes_[first].b;
  }
  heads.push_back(first);
  spend(heads.size());
  for (std::size_t i = heads.size(); i-- > 0;)
    second = intern(
        {.kind = Kind::concat, .nullable = accepts(heads[i]) && accepts(second), .a = heads[i], .b = second});
  return second;
}

Expr Grammar::concat(std::initializer_list<Expr> parts) {
  Expr result = kEpsilon;
  for (const Expr* part = parts.end(); part != parts.begin();) result = concat(*--part, result);
  return result;
}

// Alternatives that begin with the same part share it, and so do the rests that follow it. An
// ambiguous grammar then has as many alternatives as there are places in it, not as ways to reach
// them, and words with common beginnings become a tree.
Expr Grammar::alternatives(std::vector<Expr> parts) {
  std::vector<Expr> flat;
  ByteSet bytes;
  const auto take = [&](Expr part) {
    if (kind(part) == Kind::bytes)
      bytes |= sets_[nodes_[part].a];
    else if (part != kNothing)
      flat.push_back(part);
  };
  for (const Expr part : parts) {
    if (kind(part) == Kind::alternatives)
      std::ranges::for_each(children(part), take);
    else
      take(part);
  }
  if (!bytes.none()) flat.push_back(byte_set(bytes));
  spend(flat.size());
  const auto head = [&](Expr part) { return kind(part) == Kind::concat ? nodes_[part].a : part; };
  std::ranges::sort(flat, {}, [&](Expr part) { return std::pair(head(part), part); });
  const auto repeated = std::ranges::unique(flat);
  flat.erase(repeated.begin(), repeated.end());
  merge_rests(flat);
  // The empty string adds nothing to an alternative that accepts it.
  if (std::ranges::count_if(flat, [&](Expr part) { return accepts(part); }) > 1) std::erase(flat, kEpsilon);
  if (flat.empty()) return kNothing;
  if (flat.size() == 1) return flat[0];
  const bool nullable = std::ranges::any_of(flat, [&](Expr part) { return accepts(part); });
  return intern({.kind = Kind::alternatives, .nullable = nullable}, flat);
}

// `parts` is sorted by head.
void Grammar::merge_rests(std::vector<Expr>& parts) {
  std::vector<Expr> merged;
  for (std::size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    const Expr first = parts[begin];
    const Expr head = kind(first) == Kind::concat ? nodes_[first].a : first;
    const auto has_head = [&](Expr part) {
      return part == head || (kind(part) == Kind::concat && nodes_[part].a == head);
    };
    while (end < parts.size() && has_head(parts[end])) ++end;
    if (end - begin == 1) {
      merged.push_back(first);
      continue;
    }
    std::vector<Expr> rests;
    for (std::size_t i = begin; i < end; ++i)
      rests.push_back(parts[i] == head ? kEpsilon : nodes_[parts[i]].b);
    if (++depth_ > kMaxDepth) too_complex("it is nested too deeply");
    merged.push_back(concat(head, alternatives(std::move(rests))));
    --depth_;
  }
  std::ranges::sort(merged);
  parts = std::move(merged);
}

Expr Grammar::repeat(Expr part, std::uint32_t least, std::uint32_t most) {
  if (most == 0 || part == kEpsilon) return kEpsilon;
  if (part == kNothing) return least == 0 ? kEpsilon : kNothing;
  if (accepts(part)) least = 0;
  if (least == 1 && most == 1) return part;
  if (kind(part) == Kind::repeat && nodes_[part].least == 0 && nodes_[part].most == kUnbounded) return part;
  return intern({.kind = Kind::repeat, .nullable = least == 0, .a = part, .least = least, .most = most});
}

Expr Grammar::atom(Expr part) {
  const Kind inner = kind(part);
  if (inner == Kind::nothing || inner == Kind::epsilon || inner == Kind::bytes || inner == Kind::atom)
    return part;
  return intern({.kind = Kind::atom, .nullable = accepts(part), .a = part});
}

Expr Grammar::complement(Expr part) {
  if (kind(part) == Kind::complement) return nodes_[part].a;
  return intern({.kind = Kind::complement, .nullable = !accepts(part), .a = part});
}

Expr Grammar::unchecked_intersection(std::vector<Expr> parts) {
  std::vector<Expr> flat;
  for (const Expr part : parts) {
    if (part == kNothing) return kNothing;
    if (kind(part) == Kind::intersection)
      flat.insert(flat.end(), children(part).begin(), children(part).end());
    else if (kind(part) != Kind::complement || nodes_[part].a != kNothing)  // not: any string
      flat.push_back(part);
  }
  spend(flat.size());
  std::ranges::sort(flat);
  const auto repeated = std::ranges::unique(flat);
  flat.erase(repeated.begin(), repeated.end());
  const bool nullable = std::ranges::all_of(flat, [&](Expr part) { return accepts(part); });
  if (std::ranges::count(flat, kEpsilon)) return nullable ? kEpsilon : kNothing;
  if (flat.size() == 1) return flat[0];
  return intern({.kind = Kind::intersection, .nullable = nullable}, flat);
}

Expr Grammar::intersection(std::vector<Expr> parts) {
  // An atom is of no use inside.
  for (Expr& part : parts)
    if (kind(part) == Kind::atom) part = nodes_[part].a;
  const Expr e = unchecked_intersection(std::move(parts));
  return is_live(e) ? e : kNothing;
}

Expr Grammar::difference(Expr of, Expr without) {
  return intersection({of, complement(without)});
}

// Whether there is a string in it. Only an intersection needs a search: it looks for a state that
// accepts, and remembers the answer for every state on the way.
bool Grammar::is_live(Expr e) {
  if (kind(e) != Kind::intersection) return e != kNothing;
  if (accepts(e)) return true;
  if (const auto known = live_.find(e); known != live_.end()) return known->second;

  std::vector<std::pair<Expr, std::size_t>> seen = {{e, 0}};  // with the index of its predecessor
  std::unordered_map<Expr, bool> visited = {{e, true}};
  std::vector<std::size_t> open = {0};
  while (!open.empty()) {
    const std::size_t at = open.back();
    open.pop_back();
    for (ByteSet left = ByteSet::all(); !left.none();) {
      unsigned byte = 0;
      while (!left.has(static_cast<unsigned char>(byte))) ++byte;
      const Derivative next = derive_intersection(seen[at].first, static_cast<unsigned char>(byte));
      left &= ~next.same;
      if (next.expr == kNothing || !visited.try_emplace(next.expr, true).second) continue;
      const auto known = live_.find(next.expr);
      if (known != live_.end() && !known->second) continue;
      const bool live = kind(next.expr) != Kind::intersection || accepts(next.expr) || known != live_.end();
      if (live) {
        for (std::size_t back = at;; back = seen[back].second) {
          live_[seen[back].first] = true;
          if (back == 0) return true;
        }
      }
      open.push_back(seen.size());
      seen.emplace_back(next.expr, at);
    }
  }
  for (const auto& [state, before] : seen) live_[state] = false;
  return false;
}

// Rules.

std::uint32_t Grammar::declare(std::string name, bool nullable) {
  rules_.push_back({.name = std::move(name), .nullable = nullable});
  return static_cast<std::uint32_t>(rules_.size() - 1);
}

void Grammar::define(std::uint32_t rule, Expr body) {
  rules_[rule].body = body;
  rules_[rule].defined = true;
}

Expr Grammar::ref(std::uint32_t rule) {
  return intern({.kind = Kind::ref, .nullable = rules_[rule].nullable, .a = rule});
}

// The rules that an expression may begin with.
void Grammar::left_refs(Expr e, std::vector<std::uint32_t>& rules) const {
  std::vector<Expr> open = {e};
  std::unordered_map<Expr, bool> visited;
  while (!open.empty()) {
    const Expr at = open.back();
    open.pop_back();
    if (!visited.try_emplace(at, true).second) continue;
    const Node& node = nodes_[at];
    switch (node.kind) {
      case Kind::ref:
        rules.push_back(node.a);
        break;
      case Kind::concat:
        open.push_back(node.a);
        if (accepts(node.a)) open.push_back(node.b);
        break;
      case Kind::alternatives:
      case Kind::intersection:
        open.insert(open.end(), children(at).begin(), children(at).end());
        break;
      case Kind::complement:
      case Kind::repeat:
      case Kind::atom:
        open.push_back(node.a);
        break;
      default:
        break;
    }
  }
}

void Grammar::check_rules() const {
  enum class Mark : std::uint8_t { white, grey, black };
  std::vector<Mark> marks(rules_.size(), Mark::white);
  struct Visit {
    std::uint32_t rule;
    std::vector<std::uint32_t> refs;
  };
  for (std::uint32_t start = 0; start < rules_.size(); ++start) {
    check(accepts(rules_[start].body) == rules_[start].nullable, "rule {} was declared with another nullable",
          rules_[start].name);
    std::vector<Visit> path;
    const auto enter = [&](std::uint32_t rule) {
      marks[rule] = Mark::grey;
      path.push_back({rule, {}});
      left_refs(rules_[rule].body, path.back().refs);
    };
    if (marks[start] == Mark::white) enter(start);
    while (!path.empty()) {
      if (path.back().refs.empty()) {
        marks[path.back().rule] = Mark::black;
        path.pop_back();
        continue;
      }
      const std::uint32_t next = path.back().refs.back();
      path.back().refs.pop_back();
      check(marks[next] != Mark::grey, Hint{"write it so that it does not begin with itself, or use * or +"},
            "rule {} is left-recursive", rules_[next].name);
      if (marks[next] == Mark::white) enter(next);
    }
  }
}

// Which expressions stand for at least one string. The parts of a node have smaller ids, so one
// pass is enough between changes of the rules.
std::vector<bool> Grammar::productive() const {
  std::vector<bool> productive(nodes_.size(), true), rules(rules_.size(), false);
  for (bool changed = true; changed;) {
    changed = false;
    for (Expr e = 0; e < nodes_.size(); ++e) {
      const Node& node = nodes_[e];
      const auto is = [&](Expr part) { return productive[part]; };
      switch (node.kind) {
        case Kind::nothing:
          productive[e] = false;
          break;
        case Kind::concat:
          productive[e] = is(node.a) && is(node.b);
          break;
        case Kind::alternatives:
          productive[e] = std::ranges::any_of(children(e), is);
          break;
        case Kind::repeat:
          productive[e] = node.least == 0 || is(node.a);
          break;
        case Kind::ref:
          productive[e] = rules[node.a];
          break;
        case Kind::atom:
          productive[e] = is(node.a);
          break;
        default:  // an intersection was checked when it was made
          break;
      }
    }
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      if (rules[i] || !productive[rules_[i].body]) continue;
      rules[i] = changed = true;
    }
  }
  return productive;
}

Expr Grammar::rebuilt(Expr e, const std::vector<Expr>& now) {
  const Node node = nodes_[e];
  const auto parts = [&] {
    std::vector<Expr> list;
    for (const Expr child : children(e)) list.push_back(now[child]);
    return list;
  };
  switch (node.kind) {
    case Kind::concat:
      return concat(now[node.a], now[node.b]);
    case Kind::alternatives:
      return alternatives(parts());
    case Kind::repeat:
      return repeat(now[node.a], node.least, node.most);
    case Kind::atom:
      return atom(now[node.a]);
    default:
      return e;
  }
}

Expr Grammar::finish(Expr root) {
  for (const Rule& rule : rules_) check(rule.defined, "rule {} is not defined", rule.name);
  const std::vector<bool> live = productive();
  if (!live[root]) return kNothing;
  if (std::ranges::count(live, false) > 1) {  // more than kNothing
    std::vector<Expr> now(live.size(), kNothing);
    for (Expr e = 0; e < live.size(); ++e)
      if (live[e]) now[e] = rebuilt(e, now);
    for (Rule& rule : rules_) {
      rule.body = now[rule.body];
      rule.nullable = accepts(rule.body);
    }
    root = now[root];
  }
  check_rules();
  first_nodes_ = nodes_.size();
  first_children_ = children_.size();
  return root;
}

// Derivatives.

Expr* Grammar::row(Expr e) {
  if (nodes_[e].row == kNoRow) {
    if (used_rows_ == kMaxRows) {  // they are a cache
      for (Node& node : nodes_) node.row = kNoRow;
      used_rows_ = 0;
    }
    if (used_rows_ / kRowsPerBlock == rows_.size()) rows_.emplace_back(kRowsPerBlock * kRowSize);
    nodes_[e].row = used_rows_++;
    Expr* const begin =
        rows_[nodes_[e].row / kRowsPerBlock].data() + nodes_[e].row % kRowsPerBlock * kRowSize;
    std::fill_n(begin, kRowSize, kUnknown);
  }
  const std::uint32_t at = nodes_[e].row;
  return rows_[at / kRowsPerBlock].data() + at % kRowsPerBlock * kRowSize;
}

Expr Grammar::compute(Expr e, unsigned char byte) {
  memo_.clear();
  const Derivative result = derive_node(e, byte);
  Expr* const values = row(e);
  for (unsigned b = 0; b < kRowSize; ++b)
    if (result.same.has(static_cast<unsigned char>(b))) values[b] = result.expr;
  return result.expr;
}

Grammar::Derivative Grammar::derive(Expr e, unsigned char byte) {
  // Only these can make the same part appear many times: the work would be exponential.
  const Kind k = kind(e);
  const bool shared = k == Kind::alternatives || k == Kind::intersection || k == Kind::ref;
  const std::uint64_t key = std::uint64_t{e} << 8 | byte;
  if (shared)
    if (const auto known = memo_.find(key); known != memo_.end()) return known->second;
  if (++depth_ > kMaxDepth) too_complex("it is nested too deeply");
  const Derivative result = derive_node(e, byte);
  --depth_;
  if (shared) memo_.emplace(key, result);
  return result;
}

// Each alternative of `first` followed by `second`, so that alternatives can be compared by what
// they begin with.
Expr Grammar::followed_by(Expr first, Expr second) {
  if (kind(first) != Kind::alternatives || second == kEpsilon) return concat(first, second);
  std::vector<Expr> parts(children(first).begin(), children(first).end());
  for (Expr& part : parts) part = concat(part, second);
  return alternatives(std::move(parts));
}

// References to nodes do not survive the creation of others, so a node is copied.
Grammar::Derivative Grammar::derive_node(Expr e, unsigned char byte) {
  const Node node = nodes_[e];
  spend(1 + node.count);
  switch (node.kind) {
    case Kind::nothing:
    case Kind::epsilon:
      break;
    case Kind::bytes: {
      const ByteSet& set = sets_[node.a];
      if (set.has(byte)) return {kEpsilon, set};
      return {kNothing, ~set};
    }
    case Kind::concat: {
      Derivative result = derive(node.a, byte);
      result.expr = followed_by(result.expr, node.b);
      if (!accepts(node.a)) return result;
      const Derivative skipped = derive(node.b, byte);
      result.same &= skipped.same;
      result.expr = alternatives({result.expr, skipped.expr});
      return result;
    }
    case Kind::alternatives: {
      Derivative result{kNothing, ByteSet::all()};
      std::vector<Expr> parts;
      for (std::uint32_t i = 0; i < node.count; ++i) {
        const Derivative part = derive(children_[node.children + i], byte);
        result.same &= part.same;
        if (part.expr != kNothing) parts.push_back(part.expr);
      }
      result.expr = alternatives(std::move(parts));
      return result;
    }
    case Kind::intersection: {
      Derivative result = derive_intersection(e, byte);
      if (!is_live(result.expr)) result.expr = kNothing;
      return result;
    }
    case Kind::complement: {
      Derivative result = derive(node.a, byte);
      result.expr = complement(result.expr);
      return result;
    }
    case Kind::repeat: {
      Derivative result = derive(node.a, byte);
      result.expr = followed_by(result.expr, repeat(node.a, one_less(node.least), one_less(node.most)));
      return result;
    }
    case Kind::ref:
      return derive(rules_[node.a].body, byte);
    case Kind::atom: {
      Derivative result = derive(node.a, byte);
      result.expr = atom(result.expr);
      return result;
    }
  }
  return {kNothing, ByteSet::all()};
}

Grammar::Derivative Grammar::derive_intersection(Expr e, unsigned char byte) {
  const Node node = nodes_[e];
  Derivative result{kNothing, ByteSet::all()};
  std::vector<Expr> parts;
  for (std::uint32_t i = 0; i < node.count; ++i) {
    const Derivative part = derive(children_[node.children + i], byte);
    result.same &= part.same;
    parts.push_back(part.expr);
  }
  result.expr = unchecked_intersection(std::move(parts));
  return result;
}

Expr Grammar::within(Expr e, std::uint32_t bytes) {
  const std::uint64_t key = std::uint64_t{bytes} << 32 | e;
  if (const auto known = within_.find(key); known != within_.end()) return known->second;
  return within_[key] = shortened(e, bytes, kShortenedParts);
}

// Parts that come after the first `bytes` bytes are changed too, which is harmless.
Expr Grammar::shortened(Expr e, std::uint32_t bytes, int parts) {
  const Node node = nodes_[e];
  spend(1);
  if (node.kind == Kind::repeat) {
    const std::uint32_t most = node.most > bytes ? kUnbounded : node.most;
    return repeat(node.a, std::min(node.least, bytes + 1), most);
  }
  if (node.kind == Kind::concat && parts > 0) {
    const Expr first = shortened(node.a, bytes, parts - 1);
    return concat(first, shortened(node.b, bytes, parts - 1));
  }
  if (node.kind == Kind::alternatives && node.count <= kShortenedAlternatives && parts > 0) {
    std::vector<Expr> list;
    for (std::uint32_t i = 0; i < node.count; ++i)
      list.push_back(shortened(children_[node.children + i], bytes, parts / 2));
    return alternatives(std::move(list));
  }
  return node.kind == Kind::atom ? atom(shortened(node.a, bytes, parts)) : e;
}

}  // namespace thimble
