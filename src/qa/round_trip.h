// Does text come back through a tokenizer?
#pragma once

#include <cstdint>
#include <string>

#include "tokenizer/tokenizer.h"

namespace thimble {

struct RoundTrip {
  bool exact =
      false;  // any text at all; else the tokenizer normalises, and what it made of a text comes back
  std::int64_t ids = 0, texts = 0;  // that were tried
};

// Every id's text, and random texts: plain words must come back to the letter; anything else too, unless the tokenizer
// normalises. No text may give a control token. The first that breaks this is an Error that shows it.
RoundTrip check_round_trip(const Tokenizer& tokenizer);

}  // namespace thimble
