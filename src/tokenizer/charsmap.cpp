#include "tokenizer/charsmap.h"

#include <cstdint>
#include <cstring>

namespace thimble {

namespace {

constexpr std::size_t kUnitBytes = 4;

std::uint32_t unit_at(std::string_view bytes, std::size_t index) {
  std::uint32_t unit;
  std::memcpy(&unit, bytes.data() + index * kUnitBytes, kUnitBytes);
  return unit;
}

// The fields of a unit, as darts-clone packs them.
bool is_value(std::uint32_t unit) {
  return (unit >> 31) != 0;
}
bool has_leaf(std::uint32_t unit) {
  return ((unit >> 8) & 1) != 0;
}
std::size_t offset_of(std::uint32_t unit) {
  return std::size_t{unit >> 10} << ((unit & (1u << 9)) >> 6);
}

}  // namespace

bool charsmap_is_sound(std::string_view table) {
  if (table.empty()) return true;
  if (table.size() < kUnitBytes) return false;
  const std::size_t trie_bytes = unit_at(table, 0);
  table.remove_prefix(kUnitBytes);
  if (trie_bytes >= table.size() || trie_bytes == 0 || trie_bytes % kUnitBytes != 0) return false;
  const std::string_view trie = table.substr(0, trie_bytes), texts = table.substr(trie_bytes);
  if (texts.back() != '\0') return false;
  const std::size_t units = trie_bytes / kUnitBytes;
  for (std::size_t i = 0; i < units; ++i) {
    const std::uint32_t unit = unit_at(trie, i);
    if (i > 0 && is_value(unit)) continue;             // no step leads into one, and all begin at the first
    const std::size_t children = i ^ offset_of(unit);  // one of them for each byte: children ^ byte
    if ((children | 0xff) >= units) return false;
    if (has_leaf(unit) && (unit_at(trie, children) & 0x7fffffffu) >= texts.size()) return false;
  }
  return true;
}

}  // namespace thimble
