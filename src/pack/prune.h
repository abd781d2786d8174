// Pruning: weights become zero, which costs little and compresses well.
//
//   before quantisation   the smallest fraction of each matrix (parameter-golf 2.7)
//   after it              of all q = +-1 the cheapest, as many as it takes (2.7, "selective pruning"):
//                         zeroing one changes a weight by its scale, so the rows with the smallest scales
//                         come first
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pack/pack_weights.h"
#include "pack/packed_tensor.h"

namespace thimble {

// Zeroes every value with a magnitude below quantile(|values|, fraction). Returns how many that were not zero
// before.
std::int64_t prune_smallest(std::span<float> values, double fraction);

// The order in which the +-1 of quantised tensors are given up.
class CheapestFirst {
 public:
  explicit CheapestFirst(std::span<const PackedTensor> tensors);

  std::int64_t count() const { return count_; }
  // Zeroes the `count` cheapest in `tensors`, which are those of the constructor or a copy of them.
  void zero(std::int64_t count, std::span<PackedTensor> tensors) const;

 private:
  struct Row {
    float scale;
    std::size_t tensor, row;
    std::int64_t ones;  // q that are 1 or -1
  };
  std::vector<Row> rows_;  // by scale, then as they lie
  std::int64_t count_ = 0;
};

// Weights given up until the rest fits.
// Zeroes the cheapest weights (prune.h) until the groups, which are the tensors' own, take at most
// `most_bytes`: no more of them than needed, to a 250th of all candidates. If even all of them are not
// enough, all are zeroed. Returns how many.
std::int64_t prune_to_fit(const ParamTable& table, std::uint64_t most_bytes,
                          std::vector<PackedTensor>& tensors, std::vector<CodedGroup>& groups,
                          const OnCoded& on_coded = {});

}  // namespace thimble
