// A Hugging Face folder: config.json, model.safetensors or shards with model.safetensors.index.json,
// tokenizer.json or tokenizer.model, tokenizer_config.json.
//
// Tensors of llama, qwen2 and qwen3 are taken as they are. GPT-2's linears are stored [in, out] (Conv1D) and
// its q, k, v lie side by side in c_attn: they are turned and cut apart.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "config/config.h"
#include "formats/model_file.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

bool is_hugging_face_folder(const std::filesystem::path& folder);
ModelFile open_hugging_face(const std::filesystem::path& folder);

// config.json of a Hugging Face folder -> ModelConfig.
//
//   model_type   llama, qwen2, qwen3, gpt2
//   RoPE         "rope_theta" (Transformers 4) or "rope_parameters": {"rope_theta", "rope_type": "default"}
//   (5)
//
// Every key is honoured, or known to change nothing, or refused by name: a model that runs but computes
// something else is worse than none. A key that is null is absent.
struct HuggingFaceConfig {
  std::string model_type;
  ModelConfig model;    // resolved
  SpecialIds special;   // bos and eos
  bool attention_bias;  // what the file has: model.bias is on if either is, and the other's are 0
  bool mlp_bias;
};

// `name` starts every message. What is refused is one Error that lists it all.
HuggingFaceConfig parse_hugging_face_config(std::string_view json, std::string_view name);

}  // namespace thimble
