// The tokenizer's files of a Hugging Face folder.
//
//   tokenizer.json           of a byte-level BPE its own; of a SentencePiece BPE the same pieces as merges: Transformers
//                            loads it without libsentencepiece. Normalisers are written as they are (Precompiled).
//   tokenizer.model          of SentencePiece, as it is: the form that we and llama.cpp's converters read
//   tokenizer_config.json    tokens with a role, and chat_template
//   special_tokens_map.json  the same tokens for older readers
//
// Of a SentencePiece model that is no BPE only tokenizer.model is written: its class is LlamaTokenizer, which needs
// libsentencepiece there.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "formats/model_file.h"

namespace thimble {

struct TokenizerFiles {
  std::vector<std::pair<std::string, std::string>> files = {};  // name and content
  std::vector<TokenId> ends = {};  // what ends a text: of a chat model its end of turn first
  bool chats = false;              // there is a chat template
  std::vector<std::string> notes = {};
};

TokenizerFiles hugging_face_tokenizer(const ModelFile& model, const Tokenizer& tokenizer);

}  // namespace thimble
