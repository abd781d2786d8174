// Are logits the same, as far as rounding allows?
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

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

// Does text come back through a tokenizer?
struct RoundTrip {
  bool exact =
      false;  // any text at all; else the tokenizer normalises, and what it made of a text comes back
  std::int64_t ids = 0, texts = 0;  // that were tried
};

// Every id's text, and random texts: plain words must come back to the letter; anything else too, unless the tokenizer
// normalises. No text may give a control token. The first that breaks this is an Error that shows it.
RoundTrip check_round_trip(const Tokenizer& tokenizer);

}  // namespace thimble
