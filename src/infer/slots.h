// Slots: which tokens each of them holds, and which one a new prompt should take.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace thimble {

// How many tokens two texts begin with in common.
std::int64_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b);

class Slots {
 public:
  explicit Slots(std::int64_t count) : slots_(static_cast<std::size_t>(count)) {}

  std::int64_t count() const { return static_cast<std::int64_t>(slots_.size()); }
  std::int64_t free_count() const;

  // Where the longest prefix of `wanted` lies, in use or not. length 0: nowhere.
  struct Prefix {
    std::int64_t slot = -1, length = 0;
  };
  Prefix longest_prefix(std::span<const TokenId> wanted) const;

  // A free slot for a text whose prefix lies at `prefix`: that slot itself if most of what it holds is the prefix,
  // else the one unused for the longest time. -1: none is free. Marks it as in use and cuts it to the prefix, or
  // empties it: then the prefix is to be copied, and copied() told.
  std::int64_t take(Prefix prefix);
  void copied(std::int64_t slot, Prefix prefix);

  void append(std::int64_t slot, TokenId token) { at(slot).tokens.push_back(token); }
  void release(std::int64_t slot);  // the tokens stay
  const std::vector<TokenId>& tokens(std::int64_t slot) const { return at(slot).tokens; }
  std::int64_t size(std::int64_t slot) const { return static_cast<std::int64_t>(tokens(slot).size()); }

 private:
  struct Slot {
    std::vector<TokenId> tokens;  // computed: their keys and values lie in the cache
    bool in_use = false;
    std::uint64_t released = 0;  // when, counted in releases
  };
  std::int64_t oldest_free() const;
  const Slot& at(std::int64_t slot) const { return slots_[static_cast<std::size_t>(slot)]; }
  Slot& at(std::int64_t slot) { return slots_[static_cast<std::size_t>(slot)]; }

  std::vector<Slot> slots_;
  std::uint64_t releases_ = 0;
};

}  // namespace thimble
