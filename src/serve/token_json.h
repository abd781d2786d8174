// Tokens and their log-probabilities as JSON, in the two forms of OpenAI's API.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "infer/token_score.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// Of chats: {"content": [{token, logprob, bytes, top_logprobs: [...]}], "refusal": null}
Json chat_logprobs(const Tokenizer& tokenizer, std::span<const TokenScore> scores);

// Of texts: {tokens, token_logprobs, top_logprobs, text_offset}. Pieces of characters are spelled "bytes:\xe2\x80".
//
// Offsets count characters from the beginning of a choice's text; a token that begins inside of one has its offset.
// `place` is where the first token stands, and afterwards where the next one will.
struct TextPlace {
  std::size_t offset = 0;
  bool starts_text = false;       // SentencePiece drops a space there
  std::size_t prompt_tokens = 0;  // that are still to come: of the prompt the text shows special tokens, too
  std::string waiting = {};       // bytes of a character that is not whole yet
};
Json text_logprobs(const Tokenizer& tokenizer, std::span<const TokenScore> scores, TextPlace& place);

}  // namespace thimble
