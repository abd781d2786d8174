// The vocabulary keys of a GGUF file as data, and the tokenizers they stand for: what llama.cpp reads and
// writes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace thimble {

struct GgufVocabulary {
  std::string model;  // tokenizer.ggml.model: "gpt2" (byte-level BPE) or "llama" (SentencePiece)
  std::string pre;    // tokenizer.ggml.pre: names the split pattern of gpt2
  std::vector<std::string> tokens = {};
  std::vector<float> scores = {};        // llama only
  std::vector<std::int32_t> types = {};  // TokenType; may be empty: all normal
  std::vector<std::string> merges = {};  // gpt2 only: "Ġ t"
  SpecialIds special = {};
  bool add_bos = false;
  bool add_space_prefix = true;  // llama only
  bool normalises = false;  // the tokenizer changes text before it cuts it, for which a GGUF has no place
};

// Refuses models and patterns that thimble does not have, by name.
std::unique_ptr<Tokenizer> tokenizer_from_gguf(const GgufVocabulary& vocabulary);

// Refuses tokenizers that llama.cpp could not run: other patterns, normalisers, prefix spaces.
GgufVocabulary gguf_vocabulary_of(const Tokenizer& tokenizer);

}  // namespace thimble
