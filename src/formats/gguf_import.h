// A GGUF as a MODEL: llama, qwen2, qwen3, and what we fold golf models into, apertus and talkie (fold.h).
//
// Every key is honoured, or known to change nothing, or refused by name: rope scaling, sliding windows, experts. So are
// tensors that are missing, of another shape, or not part of the model.
#pragma once

#include <filesystem>
#include <string_view>

#include "formats/gguf.h"
#include "formats/model_file.h"

namespace thimble {

bool is_gguf(std::string_view first_bytes);  // the first 4 are enough

ModelFile open_gguf(const std::filesystem::path& path);
ModelFile read_gguf(const GgufFile& file);

}  // namespace thimble
