// The validation of a run: the averaged weights where there are any, else the raw ones.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "base/interrupt.h"
#include "data/token_set.h"
#include "dist/communicator.h"
#include "eval/score.h"
#include "tokenizer/tokenizer.h"
#include "train/checkpoint.h"

namespace thimble {

// Nothing if it was interrupted. The raw weights are back in their place afterwards, bit for bit.
// Of several ranks each scores a share; all get the sum, or nothing if anybody was interrupted.
std::optional<Score> validation_score(const Trained& trained, Communicator& ranks, const TokenSet& val,
                                      const ByteTable& bytes, std::int64_t val_tokens,
                                      const Interrupt& interrupt,
                                      const std::function<void(std::int64_t tokens)>& on_scored = {});

}  // namespace thimble
