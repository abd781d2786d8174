// A Hugging Face folder: config.json, model.safetensors or shards with model.safetensors.index.json,
// tokenizer.json or tokenizer.model, tokenizer_config.json.
//
// Tensors of llama, qwen2 and qwen3 are taken as they are. GPT-2's linears are stored [in, out] (Conv1D) and
// its q, k, v lie side by side in c_attn: they are turned and cut apart.
#pragma once

#include <filesystem>

#include "formats/model_file.h"

namespace thimble {

bool is_hugging_face_folder(const std::filesystem::path& folder);
ModelFile open_hugging_face(const std::filesystem::path& folder);

}  // namespace thimble
