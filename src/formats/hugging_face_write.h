// A Hugging Face folder of a llama, qwen2 or qwen3, as Transformers 4 and 5 load it:
//
//   config.json, generation_config.json    sizes, RoPE in the words of both versions; what ends a text
//   model.safetensors                      weights under Transformers' names, in one type
//   tokenizer.json, tokenizer_config.json, special_tokens_map.json       see below
//   README.md                              a short model card
//
// Ids behind the tokenizer's last (an embedding with rows to spare) are named <|pad_ID|>; generation suppresses them and
// the vocabulary's holes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"
#include "formats/model_file.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {

struct HuggingFaceReport {
  std::string architecture;
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;              // of all files
  std::vector<std::string> notes = {};  // what the folder lacks, and why
};

// What keeps a model out of Transformers' llama, qwen2 and qwen3, a sentence each; empty: nothing.
std::vector<std::string> reasons_against_hugging_face(const ModelConfig& config);
void check_for_hugging_face(const ModelConfig& config);  // an Error with all of them

// `dtype`: f32, bf16 or f16. The folder is complete under its name, or not there at all; a model that is none of the
// three is refused with all reasons. Existing::replace takes away a folder of such files and nothing else, and never the
// one that holds the model itself.
HuggingFaceReport write_hugging_face(FileOps& ops, const std::filesystem::path& folder, Existing existing,
                                     const ModelFile& model, DType dtype, const Inspector& inspect = {});

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
struct TokenizerFiles {
  std::vector<std::pair<std::string, std::string>> files = {};  // name and content
  std::vector<TokenId> ends = {};  // what ends a text: of a chat model its end of turn first
  bool chats = false;              // there is a chat template
  std::vector<std::string> notes = {};
};

TokenizerFiles hugging_face_tokenizer(const ModelFile& model, const Tokenizer& tokenizer);

// A SentencePiece BPE as Hugging Face's tokenizer.json: the same pieces, the order of their scores as merges.
//
// SentencePiece joins the neighbours whose piece has the best score, the leftmost of equals. Hugging Face goes by merges,
// so the two ways to make one piece out of smaller ones follow each other there; only where both compete in one word
// ("aa" + "a" and "a" + "aa") can the results differ.
// With <|pad_ID|> for the ids from the tokenizer's size up to `rows`. nullopt: it is no BPE, or one that joins across
// spaces in a way the file cannot say.
std::optional<std::string> sentencepiece_as_json(const Tokenizer& tokenizer, std::int64_t rows);

// Names for the ids from the vocabulary's end up to `rows`: added tokens that no text should contain.
void append_pad_tokens(BpeSpec& spec, std::int64_t rows);

}  // namespace thimble
