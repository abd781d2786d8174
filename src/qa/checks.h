// Comparisons used by the gates: logits up to rounding, and round trips through a tokenizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tokenizer/tokenizer.h"

namespace thimble {

struct LogitComparison {
  double largest = 0;         // largest difference, relative to the row's largest logit (at least 1)
  std::size_t worst_row = 0;  // row of the largest difference

  // The tolerance covers f32 sums in a different order over many layers.
  bool equal() const { return largest <= 1e-3; }
};
// Compares rows of V logits. NaN or infinity on either side makes `largest` infinite.
LogitComparison compare_logits(std::span<const float> a, std::span<const float> b, std::size_t V);

TokenId likeliest_id(std::span<const float> logits);  // ties: the first

// Whether rounding (bf16 instead of f32, for example) could make this id the most likely one: its
// logit must be within 5 % of the logits' standard deviation of the largest logit. False if any
// logit is not finite.
bool is_as_likely(std::span<const float> logits, TokenId id);

// The result of check_round_trip().
struct RoundTrip {
  bool exact = false;               // false: the tokenizer normalizes text
  std::int64_t ids = 0, texts = 0;  // number of ids and texts tested
};

// Encodes and decodes the text of every id, and random texts. Plain words must be unchanged. Other
// texts must be unchanged too or, if the tokenizer normalizes, unchanged by a second round trip. No
// text may be encoded as a control token. Throws an Error that shows the first violation.
RoundTrip check_round_trip(const Tokenizer& tokenizer);

}  // namespace thimble
