#include "tokenizer/word_counts.h"

#include <algorithm>
#include <cstring>

namespace thimble {

namespace {

// Words are short: eight bytes a step, nothing clever.
std::uint64_t hash_of(std::string_view word) {
  std::uint64_t hash = word.size() * 0x9E3779B97F4A7C15u;
  auto mix = [&](std::uint64_t piece) {
    hash = (hash ^ piece) * 0xBF58476D1CE4E5B9u;
    hash ^= hash >> 29;
  };
  while (word.size() >= 8) {
    std::uint64_t piece;
    std::memcpy(&piece, word.data(), 8);
    mix(piece);
    word.remove_prefix(8);
  }
  std::uint64_t piece = 0;
  std::memcpy(&piece, word.data(), word.size());
  mix(piece);
  return hash ^ hash >> 32;
}

}  // namespace

WordCounts::WordCounts() : slots_(1 << 12) {}

WordCounts::Slot& WordCounts::slot_of(std::string_view word, std::uint64_t hash) {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
    Slot& slot = slots_[at];
    if (slot.count == 0) return slot;
    if (slot.hash == hash && slot.bytes == word.size() &&
        std::memcmp(letters_.data() + slot.start, word.data(), word.size()) == 0)
      return slot;
  }
}

void WordCounts::add(std::string_view word, std::uint64_t count) {
  if ((size_ + 1) * 2 > slots_.size()) grow();
  const std::uint64_t hash = hash_of(word);
  Slot& slot = slot_of(word, hash);
  if (slot.count == 0) {
    slot = {hash, 0, letters_.size(), static_cast<std::uint32_t>(word.size())};
    letters_ += word;
    ++size_;
  }
  slot.count += count;
}

void WordCounts::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  const std::size_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.count == 0) continue;
    std::size_t at = slot.hash & mask;
    while (slots_[at].count != 0) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

void WordCounts::add(const WordCounts& other) {
  for (const Slot& slot : other.slots_)
    if (slot.count) add(std::string_view(other.letters_).substr(slot.start, slot.bytes), slot.count);
}

std::vector<WordCounts::Word> WordCounts::sorted() const {
  std::vector<Word> words;
  words.reserve(size_);
  for (const Slot& slot : slots_)
    if (slot.count) words.push_back({std::string_view(letters_).substr(slot.start, slot.bytes), slot.count});
  std::sort(words.begin(), words.end(), [](const Word& a, const Word& b) { return a.text < b.text; });
  return words;
}

}  // namespace thimble
