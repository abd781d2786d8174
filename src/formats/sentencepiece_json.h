// A SentencePiece BPE as Hugging Face's tokenizer.json: the same pieces, the order of their scores as merges.
//
// SentencePiece joins the neighbours whose piece has the best score, the leftmost of equals. Hugging Face goes by merges,
// so the two ways to make one piece out of smaller ones follow each other there; only where both compete in one word
// ("aa" + "a" and "a" + "aa") can the results differ.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer_json.h"

namespace thimble {

// With <|pad_ID|> for the ids from the tokenizer's size up to `rows`. nullopt: it is no BPE, or one that joins across
// spaces in a way the file cannot say.
std::optional<std::string> sentencepiece_as_json(const Tokenizer& tokenizer, std::int64_t rows);

// Names for the ids from the vocabulary's end up to `rows`: added tokens that no text should contain.
void append_pad_tokens(BpeSpec& spec, std::int64_t rows);

}  // namespace thimble
