// Byte-pair encoding of one word: start from bytes (or characters); while any adjacent pair has a
// merge, apply the merge of lowest rank, leftmost first.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {

// A flat hash table keyed by pairs of token ids, used in the inner loop of encoding.
constexpr std::uint64_t pair_key(TokenId left, TokenId right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

constexpr std::uint64_t mixed(std::uint64_t key) {
  key *= 0x9E3779B97F4A7C15u;
  return key ^ key >> 32;
}

// Open addressing, at most half full. Ids are not negative, so a key of all ones marks a free slot.
template <class Value>
class PairTable {
 public:
  explicit PairTable(std::size_t expected = 0) { resize(std::bit_ceil(expected * 2 + 16)); }

  std::size_t size() const { return size_; }

  const Value* find(std::uint64_t key) const {
    for (std::size_t at = mixed(key) & mask_;; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.key == key) return &slot.value;
      if (slot.key == kFree) return nullptr;
    }
  }

  // The value of this key, default-constructed if new. The reference is valid until the next call.
  Value& operator[](std::uint64_t key) {
    if ((size_ + 1) * 2 > slots_.size()) grow();
    Slot& slot = slot_of(key);
    if (slot.key == kFree) {
      slot.key = key;
      ++size_;
    }
    return slot.value;
  }

  template <class Use>
  void for_each(Use&& use) const {
    for (const Slot& slot : slots_)
      if (slot.key != kFree) use(slot.key, slot.value);
  }

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kFree;
    Value value{};
  };

  Slot& slot_of(std::uint64_t key) {
    std::size_t at = mixed(key) & mask_;
    while (slots_[at].key != key && slots_[at].key != kFree) at = (at + 1) & mask_;
    return slots_[at];
  }
  void resize(std::size_t slots) {
    slots_.resize(slots);
    mask_ = slots - 1;
  }
  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    mask_ = slots_.size() - 1;
    for (Slot& slot : old)
      if (slot.key != kFree) slot_of(slot.key) = std::move(slot);
  }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0, size_ = 0;
};

// Per-thread state of encoding: scratch space and a word cache of bounded size.
class BpeScratch {
 public:
  explicit BpeScratch(bool has_cache = true);
  bool has_cache() const { return !cache_.empty(); }

 private:
  friend class BpeModel;

  void forget_word();

  // A word of up to 24 bytes and its ids, in one cache line.
  struct alignas(64) Entry {
    std::array<std::uint64_t, 3> word{};
    std::uint8_t bytes = 0;  // 0: free
    std::uint8_t count = 0;
    std::array<TokenId, 8> ids{};
  };

  struct Symbol {
    TokenId id;
    std::uint32_t previous, next;
  };
  struct Candidate {
    std::uint32_t rank, at;
    TokenId left, right;
  };

  std::vector<Entry> cache_;
  std::vector<TokenId> ids_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

class BpeModel {
 public:
  explicit BpeModel(const BpeSpec& spec);  // throws if merges or bytes are not in the vocabulary

  // A longer word is an error: the word and a heap of its pairs must fit in memory.
  static constexpr std::size_t kMaxWordBytes = 16 << 20;

  // Appends the ids of a non-empty word.
  void encode_word(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& ids) const;

  // The bytes that the token encodes; decoded for a byte-level vocabulary.
  std::string_view token_bytes(TokenId id) const { return bytes_[static_cast<std::size_t>(id)]; }
  // Finds a token by its spelling in the tokenizer file.
  std::optional<TokenId> id_of(std::string_view token) const;
  // The id of a single byte, such as <0x0A> with byte fallback; -1 if there is none.
  TokenId byte_id(unsigned char byte) const { return byte_ids_[byte]; }

 private:
  struct MergeValue {
    std::uint32_t rank = 0;
    TokenId result = 0;
  };

  void find_byte_ids();
  void start_symbols(std::string_view word, std::vector<TokenId>& ids) const;
  void start_characters(std::string_view word, std::vector<TokenId>& ids) const;
  void merge_short(BpeScratch& scratch) const;
  void merge_long(BpeScratch& scratch) const;
  void encode_uncached(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& ids) const;
  std::uint32_t rank_of(TokenId left, TokenId right) const;

  bool byte_level_, byte_fallback_, fuse_unk_, ignore_merges_;
  TokenId unk_ = -1;
  std::vector<std::string> bytes_;
  std::vector<std::string> texts_;  // byte-level vocabularies only, where spelling and bytes differ
  std::unordered_map<std::string_view, TokenId> ids_;       // by spelling in the file
  std::unordered_map<std::string_view, TokenId> word_ids_;  // by bytes; filled when ignore_merges
  std::array<TokenId, 256> byte_ids_;
  PairTable<MergeValue> merges_;
};

}  // namespace thimble
