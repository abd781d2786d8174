// Reads a Hugging Face folder: config.json, model.safetensors or shards with
// model.safetensors.index.json, tokenizer.json or tokenizer.model, tokenizer_config.json.
//
// Tensors of llama, qwen2 and qwen3 are read unchanged. GPT-2 stores linear layers as [in, out]
// (Conv1D) and q, k, v concatenated in c_attn; these are transposed and split.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "config/config.h"
#include "formats/model_file.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

bool is_hugging_face_folder(const std::filesystem::path& folder);
ModelFile open_hugging_face(const std::filesystem::path& folder, WeightsAs as = WeightsAs::floats,
                            const ProgressOutput& progress = {});

// Parses config.json of a Hugging Face folder.
//
//   model_type   llama, qwen2, qwen3, gpt2
//   RoPE         Transformers 4: "rope_theta"
//                Transformers 5: "rope_parameters": {"rope_theta", "rope_type": "default"}
//
// Every key is either used, known to be harmless, or rejected by name: a model that runs but
// computes something else is worse than an error. A null key counts as absent.
struct HuggingFaceConfig {
  std::string model_type;
  ModelConfig model;    // resolved
  SpecialIds special;   // bos and eos
  bool attention_bias;  // model.bias is set if either is; absent biases are read as 0
  bool mlp_bias;
};

// Error messages begin with `name`. One Error lists all unsupported settings.
HuggingFaceConfig parse_hugging_face_config(std::string_view json, std::string_view name);

}  // namespace thimble
