// Ids after which nothing follows. They come from the model's tokenizer, never from a list of numbers.
#pragma once

#include <vector>

#include "tokenizer/tokenizer.h"

namespace thimble {

// eos, or bos where a tokenizer has no eos (DESIGN: the last token of a document is the bos of the next); and the
// control tokens that end a turn or a text under the names everybody uses: <end_turn>, <|im_end|>, <|eot_id|>, ...
std::vector<TokenId> end_ids(const Tokenizer& tokenizer);

}  // namespace thimble
