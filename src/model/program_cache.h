// Programs, made once for each {row bucket, mode} and kept.
#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <memory>

#include "model/program.h"

namespace thimble {

// training: a grid of rows, forward and backward. scoring: forward to the loss. decoding: rows of slots,
// through the cache.
enum class Mode : std::uint8_t { training, scoring, decoding };

struct ProgramKey {
  std::int64_t rows = 0, gathered = 0;
  Mode mode = Mode::training;
  int phase =
      0;  // tells apart what else a tape depends on: fake quantisation, recompute, the number of slots
  bool loop_on = true;
  auto operator<=>(const ProgramKey&) const = default;
};

// The number of rows a program is recorded with to serve `rows`: the next power of two, so that few programs
// serve all.
constexpr std::int64_t row_bucket(std::int64_t rows) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
}

// On a card every step is computed for all rows of its bucket, so that it can be recorded: buckets lie nearer together,
// 1, 2, 4, ..., 32, 48, 64, 96, 128, ...
constexpr std::int64_t card_bucket(std::int64_t rows) {
  const std::int64_t above = row_bucket(rows), between = above / 4 * 3;
  return above >= 64 && rows <= between ? between : above;
}

template <class Entry>
class ProgramCache {
 public:
  template <class Make>
  Entry& get(const ProgramKey& key, Make make) {
    auto& slot = entries_[key];
    if (!slot) slot = make();
    return *slot;
  }
  template <class Drop>
  void drop_if(Drop drop) {
    std::erase_if(entries_, [&](const auto& one) { return drop(one.first, *one.second); });
  }
  std::size_t size() const { return entries_.size(); }
  void clear() { entries_.clear(); }

 private:
  std::map<ProgramKey, std::unique_ptr<Entry>> entries_;
};

}  // namespace thimble
