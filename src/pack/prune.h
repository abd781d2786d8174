// Pruning: sets weights to zero, which costs little accuracy and compresses well.
//
//   before quantization   the smallest fraction of each matrix
//   after quantization    the cheapest of all q = +-1, as many as needed ("selective pruning"):
//                         zeroing one changes a weight by its scale, so rows with the smallest
//                         scales come first
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pack/pack_weights.h"
#include "pack/packed_tensor.h"

namespace thimble {

// Zeroes every value with a magnitude below quantile(|values|, fraction). Returns how many of them
// were not zero before.
std::int64_t prune_smallest(std::span<float> values, double fraction);

// The order in which the +-1 of quantized tensors are zeroed.
class CheapestFirst {
 public:
  explicit CheapestFirst(std::span<const PackedTensor> tensors);

  std::int64_t count() const { return count_; }
  // Zeroes the `count` cheapest in `tensors`, which are those passed to the constructor or a copy.
  void zero(std::int64_t count, std::span<PackedTensor> tensors) const;

 private:
  struct Row {
    float scale;
    std::size_t tensor, row;
    std::int64_t ones;  // number of q that are 1 or -1
  };
  std::vector<Row> rows_;  // by scale, then in file order
  std::int64_t count_ = 0;
};

// Zeroes the cheapest weights until `groups`, the coded `tensors`, take at most `max_bytes`.
// Zeroes no more than needed, to within 1/250 of all candidates. If zeroing all of them is not
// enough, all are zeroed. Updates both vectors and returns the number of zeroed weights.
std::int64_t prune_to_fit(const ParamTable& table, std::uint64_t max_bytes,
                          std::vector<PackedTensor>& tensors, std::vector<CodedGroup>& groups,
                          const OnCoded& on_coded = {});

}  // namespace thimble
