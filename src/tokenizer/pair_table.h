// Pairs of token ids -> a value, in one flat array: the lookup that encoding consists of.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace thimble {

constexpr std::uint64_t pair_key(TokenId left, TokenId right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

constexpr std::uint64_t mixed(std::uint64_t key) {
  key *= 0x9E3779B97F4A7C15u;
  return key ^ key >> 32;
}

// Open addressing, at most half full. Ids are never negative, so a key of all ones is free.
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

  // The value of this key, made empty if it was not there. Valid until the next call.
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

}  // namespace thimble
