#include "tokenizer/bpe_model.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "tokenizer/unicode.h"

namespace thimble {

namespace {

constexpr std::size_t kCacheEntries = 1 << 16;  // 4 MiB per encoding thread
constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();
// Up to this length, a linear scan for the best pair is faster than a heap.
constexpr std::size_t kShortWord = 48;

constexpr std::size_t kKeyBytes = 24;
constexpr std::size_t kLongestKept = 1 << 16;  // memory for a longer word is released after it

template <class T>
T load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// A word of 1 to 24 bytes as three numbers. Loads overlap so that they do not read past its end.
// Together with the length, the key is unique.
std::array<std::uint64_t, 3> word_key(std::string_view word) {
  const char* const p = word.data();
  const std::size_t n = word.size();
  if (n > 16) return {load<std::uint64_t>(p), load<std::uint64_t>(p + 8), load<std::uint64_t>(p + n - 8)};
  if (n >= 8) return {load<std::uint64_t>(p), load<std::uint64_t>(p + n - 8), 0};
  if (n >= 4) return {load<std::uint32_t>(p) | std::uint64_t{load<std::uint32_t>(p + n - 4)} << 32, 0, 0};
  const auto byte = [&](std::size_t i) { return std::uint64_t{static_cast<unsigned char>(p[i])}; };
  return {byte(0) | byte(n / 2) << 8 | byte(n - 1) << 16, 0, 0};
}

std::size_t cache_slot(const std::array<std::uint64_t, 3>& key, std::size_t bytes) {
  const std::uint64_t a = (key[0] ^ bytes) * 0x9E3779B97F4A7C15u;
  const std::uint64_t b = (key[1] ^ a >> 29) * 0xBF58476D1CE4E5B9u;
  const std::uint64_t c = (key[2] ^ b >> 32) * 0x94D049BB133111EBu;
  return (a ^ b ^ c) >> 40 & (kCacheEntries - 1);
}

}  // namespace

BpeScratch::BpeScratch(bool has_cache) : cache_(has_cache ? kCacheEntries : 0) {}

BpeModel::BpeModel(const BpeSpec& spec)
    : byte_level_(spec.byte_level()),
      byte_fallback_(spec.byte_fallback),
      fuse_unk_(spec.fuse_unk),
      ignore_merges_(spec.ignore_merges),
      merges_(spec.merges.size()) {
  bytes_.resize(spec.vocab.size());
  if (byte_level_) texts_ = spec.vocab;
  for (std::size_t id = 0; id < spec.vocab.size(); ++id) {
    const std::string& text = spec.vocab[id];
    bytes_[id] = byte_level_ ? byte_level_bytes(text).value_or(text) : text;
  }
  const std::vector<std::string>& texts = byte_level_ ? texts_ : bytes_;
  ids_.reserve(texts.size());
  for (std::size_t id = 0; id < texts.size(); ++id)
    if (!texts[id].empty()) ids_.emplace(texts[id], static_cast<TokenId>(id));
  if (ignore_merges_) {
    word_ids_.reserve(bytes_.size());
    for (const auto& [text, id] : ids_) word_ids_.emplace(bytes_[static_cast<std::size_t>(id)], id);
  }
  if (!spec.unk_token.empty()) {
    const auto unk = id_of(spec.unk_token);
    check(unk.has_value(), "unk_token \"{}\" is not in the vocabulary", spec.unk_token);
    unk_ = *unk;
  }
  find_byte_ids();
  for (std::size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const Merge& merge = spec.merges[rank];
    merges_[pair_key(merge.left, merge.right)] = {static_cast<std::uint32_t>(rank), merge.result};
  }
}

void BpeModel::find_byte_ids() {
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string text;
    if (byte_level_)
      append_utf8(text, byte_level_char(static_cast<unsigned char>(byte)));
    else
      text = byte_token(static_cast<unsigned char>(byte));
    byte_ids_[byte] = id_of(text).value_or(-1);
  }
}

std::optional<TokenId> BpeModel::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

std::uint32_t BpeModel::rank_of(TokenId left, TokenId right) const {
  const MergeValue* merge = merges_.find(pair_key(left, right));
  return merge ? merge->rank : kNoRank;
}

void BpeModel::encode_word(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& ids) const {
  if (word.size() > kKeyBytes || scratch.cache_.empty()) return encode_uncached(word, scratch, ids);
  const auto key = word_key(word);
  BpeScratch::Entry& entry = scratch.cache_[cache_slot(key, word.size())];
  if (entry.bytes == word.size() && entry.word == key) {
    for (std::size_t i = 0; i < entry.count; ++i) ids.push_back(entry.ids[i]);  // usually one
    return;
  }
  const std::size_t before = ids.size();
  encode_uncached(word, scratch, ids);
  const std::size_t count = ids.size() - before;
  if (count > entry.ids.size()) return;
  entry.word = key;
  entry.bytes = static_cast<std::uint8_t>(word.size());
  entry.count = static_cast<std::uint8_t>(count);
  std::copy_n(ids.begin() + static_cast<std::ptrdiff_t>(before), count, entry.ids.begin());
}

void BpeModel::encode_uncached(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& ids) const {
  if (ignore_merges_)
    if (const auto found = word_ids_.find(word); found != word_ids_.end())
      return ids.push_back(found->second);
  // Without merges a word may have any length.
  if (merges_.size() == 0 && byte_level_) return start_symbols(word, ids);
  check(word.size() <= kMaxWordBytes, Hint{"check that the input is text and not a binary file"},
        "cannot encode a word of {} bytes: the limit is {}", word.size(), kMaxWordBytes);
  scratch.ids_.clear();
  scratch.ids_.reserve(word.size());
  start_symbols(word, scratch.ids_);
  if (scratch.ids_.size() <= kShortWord)
    merge_short(scratch);
  else
    merge_long(scratch);
  ids.insert(ids.end(), scratch.ids_.begin(), scratch.ids_.end());
  if (word.size() > kLongestKept) scratch.forget_word();
}

void BpeScratch::forget_word() {
  // Not "= {}", which keeps the capacity of a vector.
  ids_ = std::vector<TokenId>();
  symbols_ = std::vector<Symbol>();
  heap_ = std::vector<Candidate>();
}

void BpeModel::start_symbols(std::string_view word, std::vector<TokenId>& ids) const {
  if (!byte_level_) return start_characters(word, ids);
  const std::size_t start = ids.size();  // unknown bytes of an earlier word are not fused with this one
  for (const char c : word) {
    const auto byte = static_cast<unsigned char>(c);
    const TokenId id = byte_ids_[byte] >= 0 ? byte_ids_[byte] : unk_;
    // Hugging Face's implementation drops such a byte silently.
    check(id >= 0, Hint{"retrain the tokenizer with thimble, which always includes all 256 bytes"},
          "cannot encode the text: the vocabulary has no token for the byte 0x{:02X}", byte);
    if (id == unk_ && fuse_unk_ && ids.size() > start && ids.back() == unk_) continue;
    ids.push_back(id);
  }
}

void BpeModel::start_characters(std::string_view word, std::vector<TokenId>& ids) const {
  const char* const end = word.data() + word.size();
  for (const char* p = word.data(); p < end;) {
    const Utf8Char c = decode_utf8(p, end);
    const std::string_view character(p, c.bytes);
    p += c.bytes;
    if (const auto found = c.valid ? id_of(character) : std::nullopt) {
      ids.push_back(*found);
      continue;
    }
    const bool fallback = byte_fallback_ && std::all_of(character.begin(), character.end(), [&](char b) {
                            return byte_ids_[static_cast<unsigned char>(b)] >= 0;
                          });
    if (fallback) {
      for (const char b : character) ids.push_back(byte_ids_[static_cast<unsigned char>(b)]);
      continue;
    }
    check(unk_ >= 0,
          "cannot encode U+{:04X}: the vocabulary has no token for it, no byte fallback and no unk token",
          static_cast<std::uint32_t>(c.code));
    if (fuse_unk_ && !ids.empty() && ids.back() == unk_) continue;
    ids.push_back(unk_);
  }
}

void BpeModel::merge_short(BpeScratch& scratch) const {
  std::vector<TokenId>& ids = scratch.ids_;
  std::array<std::uint32_t, kShortWord> ranks;
  std::size_t count = ids.size();
  for (std::size_t i = 0; i + 1 < count; ++i) ranks[i] = rank_of(ids[i], ids[i + 1]);
  while (count > 1) {
    const auto best = std::min_element(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(count - 1));
    if (*best == kNoRank) break;
    const auto i = static_cast<std::size_t>(best - ranks.begin());
    ids[i] = merges_.find(pair_key(ids[i], ids[i + 1]))->result;
    const auto after = static_cast<std::ptrdiff_t>(i + 1), last = static_cast<std::ptrdiff_t>(count);
    std::copy(ids.begin() + after + 1, ids.begin() + last, ids.begin() + after);
    if (i + 2 < count) std::copy(ranks.begin() + after + 1, ranks.begin() + last - 1, ranks.begin() + after);
    --count;
    if (i + 1 < count) ranks[i] = rank_of(ids[i], ids[i + 1]);
    if (i > 0) ranks[i - 1] = rank_of(ids[i - 1], ids[i]);
  }
  ids.resize(count);
}

void BpeModel::merge_long(BpeScratch& scratch) const {
  constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  auto& symbols = scratch.symbols_;
  auto& heap = scratch.heap_;
  const auto count = static_cast<std::uint32_t>(scratch.ids_.size());
  symbols.clear();
  heap.clear();
  // A merge removes one candidate and adds at most two. Exact sizes take less memory than doubling.
  symbols.reserve(count);
  heap.reserve(2 * std::size_t{count});
  for (std::uint32_t i = 0; i < count; ++i)
    symbols.push_back({scratch.ids_[i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1});

  const auto later = [](const auto& a, const auto& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  auto candidate = [&](std::uint32_t at) {
    if (at == kNone || symbols[at].next == kNone) return BpeScratch::Candidate{kNoRank, at, 0, 0};
    const TokenId left = symbols[at].id, right = symbols[symbols[at].next].id;
    return BpeScratch::Candidate{rank_of(left, right), at, left, right};
  };
  auto push = [&](std::uint32_t at) {
    const auto c = candidate(at);
    if (c.rank == kNoRank) return;
    heap.push_back(c);
    std::push_heap(heap.begin(), heap.end(), later);
  };
  for (std::uint32_t i = 0; i + 1 < count; ++i)
    if (const auto c = candidate(i); c.rank != kNoRank) heap.push_back(c);
  std::make_heap(heap.begin(), heap.end(), later);

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const BpeScratch::Candidate top = heap.back();
    heap.pop_back();
    BpeScratch::Symbol& left = symbols[top.at];
    // Stale entry: one of the two symbols has been merged since it was pushed.
    if (left.id != top.left || left.next == kNone || symbols[left.next].id != top.right) continue;
    left.id = merges_.find(pair_key(top.left, top.right))->result;
    BpeScratch::Symbol& right = symbols[left.next];
    right.id = -1;
    left.next = right.next;
    if (left.next != kNone) symbols[left.next].previous = top.at;
    push(left.previous);
    push(top.at);
  }
  scratch.ids_.clear();
  for (std::uint32_t i = 0; i != kNone; i = symbols[i].next) scratch.ids_.push_back(symbols[i].id);
}

}  // namespace thimble
