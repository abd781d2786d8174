// Writes a model of one of the families in architectures.h as a folder that Transformers 4 and 5
// can load:
//
//   config.json, generation_config.json    sizes, RoPE for both versions, end-of-text ids
//   model.safetensors                      weights under Transformers' names, all of one type
//   tokenizer.json, tokenizer_config.json, special_tokens_map.json       see below
//   README.md                              a short model card
//
// Ids from the tokenizer's size up to the rows of the embedding are named <|pad_ID|>. Generation
// suppresses them, and the unused ids of the vocabulary.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"
#include "formats/architectures.h"
#include "formats/model_file.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {

struct HuggingFaceReport {
  std::string architecture;
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;              // of all files
  std::vector<std::string> notes = {};  // what the folder does not contain, and why
};

// The family as which a model is written (family_of). Throws an Error with all reasons if no family
// can express it.
const Architecture& hugging_face_family(const ModelConfig& config, std::string_view preferred = {});

// `dtype`: f32, bf16 or f16. Atomic: `folder` becomes the complete folder or is left unchanged.
// Throws an Error with all reasons if the model cannot be expressed. Existing::replace deletes only
// a folder that contains nothing but these files, and never the folder of the source model.
HuggingFaceReport write_hugging_face(FileOps& ops, const std::filesystem::path& folder, Existing existing,
                                     const ModelFile& model, DType dtype, const Inspector& inspect = {},
                                     const ProgressOutput& progress = {});

// The tokenizer's files of a Hugging Face folder.
//
//   tokenizer.json           byte-level BPE: its own file. SentencePiece BPE: the same pieces as
//                            merges, so that Transformers loads it without libsentencepiece.
//                            Normalizers are copied (Precompiled).
//   tokenizer.model          SentencePiece only, unchanged; for thimble and llama.cpp's converters
//   tokenizer_config.json    special tokens, and chat_template
//   special_tokens_map.json  the same special tokens for older readers
//
// For a SentencePiece model that is not BPE, tokenizer.json is omitted and the tokenizer class is
// LlamaTokenizer, for which Transformers needs libsentencepiece.
struct TokenizerFiles {
  std::vector<std::pair<std::string, std::string>> files = {};  // name and content
  std::vector<TokenId> ends = {};  // end-of-text ids; in a chat model the end of turn comes first
  bool chats = false;              // has a chat template
  std::vector<std::string> notes = {};
};

TokenizerFiles hugging_face_tokenizer(const ModelFile& model, const Tokenizer& tokenizer);

// Converts a SentencePiece BPE to Hugging Face's tokenizer.json: the same pieces, with merges in
// the order of their scores.
//
// SentencePiece joins the adjacent pair whose piece has the best score, the leftmost if equal.
// Hugging Face applies merges in order, so the different splits of one piece become successive
// merges. Results can differ only where two of them compete in one word ("aa" + "a" and "a" +
// "aa"). Ids from the tokenizer's size up to `rows` are named <|pad_ID|>. Returns nullopt if the
// model is not BPE, or treats whitespace in a way that tokenizer.json cannot express.
std::optional<std::string> sentencepiece_as_json(const Tokenizer& tokenizer, std::int64_t rows);

// Names the ids from the vocabulary's end up to `rows`, as added tokens that no text should
// contain.
void append_pad_tokens(BpeSpec& spec, std::int64_t rows);

}  // namespace thimble
