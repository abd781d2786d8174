// Hugging Face's tokenizer.json, read and written. What thimble cannot honour is refused by name: a tokenizer
// that gives other ids than its model was trained with is worse than none.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>

#include "tokenizer/bpe_spec.h"

namespace thimble {

// `name` is the file, for messages.
BpeSpec parse_tokenizer_json(std::string_view text, std::string_view name);

std::string write_tokenizer_json(const BpeSpec& spec);

// What exports call a row of the embedding without a token (DESIGN 8.5): <|pad_ID|>, with _ behind it as long as a token
// has that text. Reading a tokenizer.json drops such tokens.
std::string pad_token_text(std::int64_t id, const std::unordered_set<std::string>& known);

}  // namespace thimble
