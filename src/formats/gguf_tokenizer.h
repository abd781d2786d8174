// Conversion between a model's tokenizer and chat template and the keys of a GGUF.
//
// llama.cpp requires one token per row of the embedding. Extra rows get tokens <|pad_ID|> of type
// unused, which no text encodes to.
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

// All keys tokenizer.*; a model without a tokenizer gets "no_vocab". Differences in llama.cpp's
// behavior are added to `notes`, one sentence each. Throws an Error for unsupported tokenizers.
GgufSettings gguf_tokenizer_settings(const ModelFile& model, std::vector<std::string>& notes);

// read_gguf_tokenizer() reads every supported key tokenizer.*; `file` is nullopt if there is none.
struct GgufTokenizer {
  std::optional<TokenizerFile> file;
  std::int64_t tokens = 0;
  std::string layout;  // chat layout (tokenizer/chat_layout.h); empty: none
};
GgufTokenizer read_gguf_tokenizer(GgufKeyReader& keys, const std::string& name);

// The vocabulary keys of a GGUF file as data, and conversion to and from tokenizers.

struct GgufVocabulary {
  std::string model;  // tokenizer.ggml.model: "gpt2" (byte-level BPE) or "llama" (SentencePiece)
  std::string pre;    // tokenizer.ggml.pre: names the split pattern of gpt2
  std::vector<std::string> tokens = {};
  std::vector<float> scores = {};        // llama only
  std::vector<std::int32_t> types = {};  // TokenType; empty: all normal
  std::vector<std::string> merges = {};  // gpt2 only: "Ġ t"
  SpecialIds special = {};
  bool add_bos = false;
  bool add_space_prefix = true;  // llama only
  bool normalizes = false;       // the tokenizer normalizes text, which a GGUF cannot express
};

// Throws an Error that names the model or pattern if thimble does not support it.
std::unique_ptr<Tokenizer> tokenizer_from_gguf(const GgufVocabulary& vocabulary);

// Throws an Error for tokenizers that llama.cpp cannot run: other patterns, normalizers, prefix
// spaces.
GgufVocabulary gguf_vocabulary_of(const Tokenizer& tokenizer);

}  // namespace thimble
