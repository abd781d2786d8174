// The tokenizer and the chat template of a model as keys of a GGUF, there and back.
//
// llama.cpp takes the number of tokens for the rows of the embedding: an embedding with rows to spare gets tokens
// <|pad_ID|>, type unused, which no text gives.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/gguf.h"
#include "formats/gguf_import.h"
#include "formats/model_file.h"

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

}  // namespace thimble
