#include <algorithm>
#include <cfloat>
#include <cstring>
#include <functional>
#include <queue>

#include "base/utf8.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/unicode.h"
#include "wasm/sentencepiece_processor.h"

namespace sentencepiece {

namespace {

using thimble::for_each_field;
using thimble::ProtobufField;

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581

// The bytes of the character that begins with this byte, at most those of `text`. Like the library,
// it does not look at the other bytes.
std::size_t character_bytes(std::string_view text) {
  constexpr std::string_view kBytes = "\1\1\1\1\1\1\1\1\1\1\1\1\2\2\3\4";
  const auto first = static_cast<unsigned char>(text[0]);
  return std::min<std::size_t>(static_cast<std::size_t>(kBytes[first >> 4]), text.size());
}

// A unit of the normalizer's trie, a double array of darts-clone.
struct Unit {
  std::uint32_t bits;

  std::uint32_t label() const { return bits & (1u << 31 | 0xff); }
  bool has_leaf() const { return (bits >> 8 & 1) != 0; }
  std::uint32_t value() const { return bits & 0x7fffffff; }
  std::uint32_t offset() const { return (bits >> 10) << ((bits & 1u << 9) >> 6); }
};

}  // namespace

void SentencePieceProcessor::read(std::string_view model) {
  constexpr std::uint32_t kPieces = 1, kTrainer = 2, kNormalizer = 3;
  std::string_view table;
  for_each_field(model, [&](const ProtobufField& field) {
    if (field.is_message(kPieces)) {
      Piece& piece = pieces_.emplace_back();
      for_each_field(field.bytes, [&](const ProtobufField& inner) {
        if (inner.is_message(1)) piece.text = inner.bytes;
        if (inner.is_float(2)) std::memcpy(&piece.score, inner.bytes.data(), sizeof piece.score);
        if (inner.number == 3 && inner.varint >= kNormal && inner.varint <= kByte)
          piece.type = static_cast<Type>(inner.varint);
      });
    } else if (field.is_message(kTrainer)) {
      for_each_field(field.bytes, [&](const ProtobufField& inner) {
        if (inner.number == 3) kind_ = static_cast<int>(inner.varint);
        if (inner.number == 24) space_as_suffix_ = inner.varint != 0;
        if (inner.number == 35) byte_fallback_ = inner.varint != 0;
        if (inner.is_message(45)) unk_ = inner.bytes;
        if (inner.is_message(46)) bos_ = inner.bytes;
        if (inner.is_message(47)) eos_ = inner.bytes;
        if (inner.is_message(48)) pad_ = inner.bytes;
      });
    } else if (field.is_message(kNormalizer)) {
      for_each_field(field.bytes, [&](const ProtobufField& inner) {
        if (inner.is_message(2)) table = inner.bytes;
        if (inner.number == 3) add_dummy_prefix_ = inner.varint != 0;
        if (inner.number == 4) remove_extra_spaces_ = inner.varint != 0;
        if (inner.number == 5) escape_spaces_ = inner.varint != 0;
      });
    }
  });
  if (table.empty()) return;
  std::uint32_t trie_bytes = 0;
  std::memcpy(&trie_bytes, table.data(), sizeof trie_bytes);
  trie_ = table.substr(sizeof trie_bytes, trie_bytes);
  replacements_ = table.substr(sizeof trie_bytes + trie_bytes);
}

// The library's checks.
util::Status SentencePieceProcessor::index() {
  std::vector<bool> bytes(256);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    if (piece.text.empty()) return util::Status("piece must not be empty");
    const bool is_text = piece.type == kNormal || piece.type == kUserDefined || piece.type == kUnused;
    if (!(is_text ? text_ids_ : reserved_ids_).emplace(piece.text, static_cast<int>(i)).second)
      return util::Status(piece.text + " is already defined");
    if (is_text) longest_piece_ = std::max(longest_piece_, piece.text.size());
    if (piece.type == kUserDefined) user_defined_.push_back(piece.text);
    if (piece.type == kUnknown) {
      if (unknown_ >= 0) return util::Status("unk is already defined");
      unknown_ = static_cast<int>(i);
    }
    if (piece.type == kByte) {
      const auto byte = thimble::byte_of_token(piece.text);
      if (!byte_fallback_ || !byte) return util::Status("byte piece " + piece.text + " is invalid");
      bytes[*byte] = true;
    }
  }
  if (unknown_ < 0) return util::Status("unk is not defined");
  if (byte_fallback_ && std::ranges::find(bytes, false) != bytes.end())
    return util::Status("there are not 256 byte pieces");
  std::ranges::stable_sort(user_defined_, std::greater<>(), &std::string_view::size);
  return {};
}

util::Status SentencePieceProcessor::LoadFromSerializedProto(std::string_view model) {
  read(model);
  if (kind_ < kUnigram || kind_ > kChar) return util::Status("unknown model type");
  return index();
}

int SentencePieceProcessor::PieceToId(std::string_view piece) const {
  for (const auto* ids : {&reserved_ids_, &text_ids_})
    if (const auto found = ids->find(piece); found != ids->end()) return found->second;
  return unknown_;
}

int SentencePieceProcessor::special_id(const std::string& name, Type type) const {
  const int id = PieceToId(name);
  return type_of(id) == type ? id : -1;
}

// The bytes of the longest user-defined piece at the start of `text`, or 0.
std::size_t SentencePieceProcessor::user_defined_at(std::string_view text) const {
  for (const std::string_view piece : user_defined_)
    if (text.starts_with(piece)) return piece.size();
  return 0;
}

SentencePieceProcessor::Prefix SentencePieceProcessor::normalized_prefix(std::string_view text) const {
  if (const std::size_t bytes = user_defined_at(text); bytes > 0) return {text.substr(0, bytes), bytes};
  const auto unit_at = [&](std::size_t at) {
    Unit unit{};
    std::memcpy(&unit, trie_.data() + at * sizeof unit, sizeof unit);
    return unit;
  };
  std::size_t longest = 0, value = 0;
  if (!trie_.empty()) {
    std::size_t at = unit_at(0).offset();
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      at ^= byte;
      const Unit unit = unit_at(at);
      if (unit.label() != byte) break;
      at ^= unit.offset();
      if (!unit.has_leaf()) continue;
      longest = i + 1;
      value = unit_at(at).value();
    }
  }
  if (longest > 0) return {std::string_view(replacements_.data() + value), longest};  // ends with '\0'
  const thimble::Utf8Char c = thimble::decode_utf8(text.data(), text.data() + text.size());
  return c.valid ? Prefix{text.substr(0, c.bytes), c.bytes} : Prefix{thimble::kReplacementCharacter, 1};
}

std::string SentencePieceProcessor::normalized(std::string_view text) const {
  std::string out;
  const std::string_view space = escape_spaces_ ? kSpace : " ";
  if (remove_extra_spaces_)
    while (!text.empty()) {
      const Prefix prefix = normalized_prefix(text);
      if (prefix.text != " ") break;
      text.remove_prefix(prefix.bytes);
    }
  if (text.empty()) return out;
  out.reserve(text.size() * 2);
  if (!space_as_suffix_ && add_dummy_prefix_) out += space;
  bool after_space = remove_extra_spaces_;
  while (!text.empty()) {
    const Prefix prefix = normalized_prefix(text);
    std::string_view piece = prefix.text;
    while (after_space && piece.starts_with(' ')) piece.remove_prefix(1);
    for (const char c : piece) c == ' ' ? out += space : out += c;
    if (!piece.empty()) after_space = piece.ends_with(' ');
    text.remove_prefix(prefix.bytes);
    if (!remove_extra_spaces_) after_space = false;
  }
  if (remove_extra_spaces_)
    while (out.ends_with(space)) out.resize(out.size() - space.size());
  if (space_as_suffix_ && add_dummy_prefix_) out += space;
  return out;
}

// Merges the two neighbours whose piece has the best score, leftmost first, as long as any form a
// piece. Unused pieces are then split into the two parts that formed them.
SentencePieceProcessor::Found SentencePieceProcessor::bpe(std::string_view text) const {
  struct Symbol {
    int previous, next;
    bool frozen;  // user-defined
    std::string_view text;
  };
  struct Pair {
    float score;
    int left, right;
    std::size_t bytes;
    bool operator<(const Pair& other) const {
      return score < other.score || (score == other.score && left > other.left);
    }
  };
  std::vector<Symbol> symbols;
  std::priority_queue<Pair> pairs;
  std::unordered_map<std::string_view, std::pair<std::string_view, std::string_view>> halves;
  const auto symbol = [&](int i) -> Symbol& { return symbols[static_cast<std::size_t>(i)]; };
  const auto add_pair = [&](int left, int right) {
    if (left < 0 || right < 0 || symbol(left).frozen || symbol(right).frozen) return;
    const std::string_view a = symbol(left).text, b = symbol(right).text;
    const std::string_view both(a.data(), a.size() + b.size());
    const auto found = text_ids_.find(both);
    if (found == text_ids_.end()) return;
    pairs.push({pieces_[static_cast<std::size_t>(found->second)].score, left, right, both.size()});
    if (IsUnused(found->second)) halves[both] = {a, b};
  };
  for (int i = 0; !text.empty(); ++i) {
    const std::size_t defined = user_defined_at(text), bytes = defined ? defined : character_bytes(text);
    symbols.push_back({i - 1, bytes == text.size() ? -1 : i + 1, defined > 0, text.substr(0, bytes)});
    text.remove_prefix(bytes);
  }
  for (int i = 1; i < static_cast<int>(symbols.size()); ++i) add_pair(i - 1, i);
  while (!pairs.empty()) {
    const Pair best = pairs.top();
    pairs.pop();
    Symbol &left = symbol(best.left), &right = symbol(best.right);
    // One of them has been merged since.
    if (left.text.empty() || right.text.empty() || left.text.size() + right.text.size() != best.bytes)
      continue;
    left.text = {left.text.data(), best.bytes};
    left.next = right.next;
    if (right.next >= 0) symbol(right.next).previous = best.left;
    right.text = {};
    add_pair(left.previous, best.left);
    add_pair(best.left, left.next);
  }
  Found found;
  const auto add = [&](const auto& self, std::string_view piece) -> void {
    const int id = PieceToId(piece);
    const auto parts = IsUnused(id) ? halves.find(piece) : halves.end();
    if (parts == halves.end()) {
      found.emplace_back(piece, id);
      return;
    }
    self(self, parts->second.first);
    self(self, parts->second.second);
  };
  for (int i = symbols.empty() ? -1 : 0; i >= 0; i = symbol(i).next) add(add, symbol(i).text);
  return found;
}

// The pieces with the largest sum of scores. Sums are rounded as in the library, so that equally
// good sequences are decided alike.
SentencePieceProcessor::Found SentencePieceProcessor::unigram(std::string_view text) const {
  constexpr float kUnknownPenalty = 10;
  float least = FLT_MAX, most = FLT_MIN;
  for (const Piece& piece : pieces_) {
    if (piece.type != kNormal) continue;
    least = std::min(least, piece.score);
    most = std::max(most, piece.score);
  }
  struct Best {
    int id = -1;
    float score = 0;
    std::size_t start = std::string_view::npos;
  };
  std::vector<Best> ends(text.size() + 1);
  const auto offer = [&](std::size_t end, int id, std::size_t start, auto score) {
    Best& best = ends[end];
    if (best.start == text.npos || score > best.score) best = {id, static_cast<float>(score), start};
  };
  for (std::size_t start = 0; start < text.size();) {
    const float before = ends[start].score;
    const std::size_t first = character_bytes(text.substr(start));
    bool single = false;
    for (std::size_t bytes = 1; bytes <= std::min(longest_piece_, text.size() - start); ++bytes) {
      const auto found = text_ids_.find(text.substr(start, bytes));
      if (found == text_ids_.end() || IsUnused(found->second)) continue;
      const double score = type_of(found->second) == kUserDefined
                               ? static_cast<float>(bytes) * most - 0.1
                               : double{pieces_[static_cast<std::size_t>(found->second)].score};
      offer(start + bytes, found->second, start, score + double{before});
      single = single || bytes == first;
    }
    if (!single) offer(start + first, unknown_, start, (least - kUnknownPenalty) + before);
    start += first;
  }
  Found found;
  for (std::size_t end = text.size(); end > 0; end = ends[end].start)
    found.emplace_back(text.substr(ends[end].start, end - ends[end].start), ends[end].id);
  std::ranges::reverse(found);
  return found;
}

SentencePieceProcessor::Found SentencePieceProcessor::words(std::string_view text) const {
  Found found;
  for (std::size_t end = 0; !text.empty(); text.remove_prefix(end)) {
    end = std::min(text.find(kSpace, 1), text.size());
    found.emplace_back(text.substr(0, end), PieceToId(text.substr(0, end)));
  }
  return found;
}

SentencePieceProcessor::Found SentencePieceProcessor::characters(std::string_view text) const {
  Found found;
  for (std::size_t bytes = 0; !text.empty(); text.remove_prefix(bytes)) {
    bytes = user_defined_at(text);
    if (bytes == 0) bytes = character_bytes(text);
    found.emplace_back(text.substr(0, bytes), PieceToId(text.substr(0, bytes)));
  }
  return found;
}

util::Status SentencePieceProcessor::Encode(std::string_view text, std::vector<int>* ids) const {
  const std::string clean = normalized(text);
  const Found found = kind_ == kBpe       ? bpe(clean)
                      : kind_ == kUnigram ? unigram(clean)
                      : kind_ == kWord    ? words(clean)
                                          : characters(clean);
  ids->clear();
  bool after_unknown = false;
  for (const auto& [piece, id] : found) {
    if (IsControl(id)) return util::Status("all normalized characters are not consumed");
    const bool unknown = IsUnknown(id);
    if (unknown && byte_fallback_)
      for (const char c : piece)
        ids->push_back(PieceToId(thimble::byte_token(static_cast<unsigned char>(c))));
    else if (!unknown || !after_unknown)  // a run of unknown pieces is one
      ids->push_back(id);
    after_unknown = unknown;
  }
  return {};
}

}  // namespace sentencepiece
