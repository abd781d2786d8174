// Hugging Face's tokenizer.json, read and written. What thimble cannot honour is refused by name: a tokenizer
// that gives other ids than its model was trained with is worse than none.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/bpe_spec.h"

namespace thimble {

// `name` is the file, for messages.
BpeSpec parse_tokenizer_json(std::string_view text, std::string_view name);

std::string write_tokenizer_json(const BpeSpec& spec);

}  // namespace thimble
