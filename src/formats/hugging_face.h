// Reads a Hugging Face folder: config.json, model.safetensors or shards with
// model.safetensors.index.json, tokenizer.json or tokenizer.model, tokenizer_config.json.
//
// architectures.h lists the families, their keys and their tensors.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "formats/architectures.h"
#include "formats/model_file.h"

namespace thimble {

bool is_hugging_face_folder(const std::filesystem::path& folder);
ModelFile open_hugging_face(const std::filesystem::path& folder, WeightsAs as = WeightsAs::floats,
                            const ProgressOutput& progress = {});

}  // namespace thimble
