// How likely the model finds a token: log-probabilities, natural, of softmax over the whole vocabulary as the model
// says it, before temperature, penalties and filters.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace thimble {

struct TokenScore {
  TokenId id = -1;
  // Only if asked for; NaN: unknown (the first token of a prompt follows nothing).
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top = {};  // the likeliest ids and theirs, best first
};

// `top`: how many of the likeliest to name, among ids below `allowed`. Logits that are not finite are an error.
TokenScore score_token(std::span<const float> logits, TokenId id, int top, std::int64_t allowed);

// Throws the error for a model whose output is not finite.
void check_finite(std::span<const float> logits);

}  // namespace thimble
