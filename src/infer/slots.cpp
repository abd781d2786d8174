#include "infer/slots.h"

#include <algorithm>

namespace thimble {

std::int64_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

std::int64_t Slots::free_count() const {
  return std::ranges::count(slots_, false, &Slot::in_use);
}

Slots::Prefix Slots::longest_prefix(std::span<const TokenId> wanted) const {
  Prefix best;
  for (std::int64_t slot = 0; slot < count(); ++slot) {
    const std::int64_t length = common_prefix(tokens(slot), wanted);
    const bool handier = length > 0 && length == best.length && at(best.slot).in_use && !at(slot).in_use;
    if (length > best.length || handier) best = {slot, length};
  }
  return best;
}

std::int64_t Slots::oldest_free() const {
  std::int64_t oldest = -1;
  for (std::int64_t slot = 0; slot < count(); ++slot)
    if (!at(slot).in_use && (oldest < 0 || at(slot).released < at(oldest).released)) oldest = slot;
  return oldest;
}

std::int64_t Slots::take(Prefix prefix) {
  const bool continues =
      prefix.slot >= 0 && !at(prefix.slot).in_use && 2 * prefix.length >= size(prefix.slot);
  const std::int64_t slot = continues ? prefix.slot : oldest_free();
  if (slot < 0) return slot;
  at(slot).in_use = true;
  at(slot).tokens.resize(static_cast<std::size_t>(slot == prefix.slot ? prefix.length : 0));
  return slot;
}

void Slots::copied(std::int64_t slot, Prefix prefix) {
  const auto& from = tokens(prefix.slot);
  at(slot).tokens.assign(from.begin(), from.begin() + prefix.length);
}

void Slots::release(std::int64_t slot) {
  at(slot).in_use = false;
  at(slot).released = ++releases_;
}

}  // namespace thimble
