// The tokenizer and the chat template of a model as keys of a GGUF, there and back.
//
// llama.cpp takes the number of tokens for the rows of the embedding: an embedding with rows to spare gets tokens
// <|pad_ID|>, type unused, which no text gives.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/gguf.h"
#include "formats/gguf_import.h"
#include "formats/model_file.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// All keys tokenizer.*. A model without a tokenizer gets none ("no_vocab"). What llama.cpp will do differently is added
// to `notes`, a sentence each; what it cannot do is an Error.
GgufSettings gguf_tokenizer_settings(const ModelFile& model, std::vector<std::string>& notes);

// nullopt: the file has none. Takes every key tokenizer.* that is honoured.
struct GgufTokenizer {
  std::optional<TokenizerFile> file;
  std::string layout;  // of chats (tokenizer/chat_layout.h); empty: none
};
GgufTokenizer read_gguf_tokenizer(GgufQuestions& questions, const std::string& name);

// The vocabulary keys of a GGUF file as data, and the tokenizers they stand for: what llama.cpp reads and
// writes.

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
