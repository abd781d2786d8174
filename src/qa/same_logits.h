// Are logits the same, as far as rounding allows?
#pragma once

#include <cstddef>
#include <span>

#include "tokenizer/tokenizer.h"

namespace thimble {

struct LogitComparison {
  double largest = 0;         // difference, as a part of the row's largest logit (of 1, where that is less)
  std::size_t worst_row = 0;  // where

  bool equal() const { return largest <= 1e-3; }  // f32 sums in another order, over many layers; NaN is not
};
// Rows of V. NaN or infinity on either side makes `largest` infinite.
LogitComparison compare_logits(std::span<const float> a, std::span<const float> b, std::size_t V);

TokenId likeliest_id(std::span<const float> logits);  // the first of equals

// Could rounding (bf16 here, f32 there) have made this id the likeliest? Its logit must be at most 5 % of the
// logits' deviation below the largest; where one is not finite, none is.
bool is_as_likely(std::span<const float> logits, TokenId id);

}  // namespace thimble
