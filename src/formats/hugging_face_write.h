// A Hugging Face folder of a llama, qwen2 or qwen3, as Transformers 4 and 5 load it:
//
//   config.json, generation_config.json    sizes, RoPE in the words of both versions; what ends a text
//   model.safetensors                      weights under Transformers' names, in one type
//   tokenizer.json, tokenizer_config.json, special_tokens_map.json       see hugging_face_write_tokenizer.h
//   README.md                              a short model card
//
// Ids behind the tokenizer's last (an embedding with rows to spare) are named <|pad_ID|>; generation suppresses them and
// the vocabulary's holes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/files.h"
#include "formats/model_file.h"

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

}  // namespace thimble
