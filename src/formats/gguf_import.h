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

// WeightsAs::stored: integers of Q8_0 and Q4_0 stay integers, F16 and BF16 what they are (model_file.h).
// ModelFile::metadata holds every value as JSON (gguf_value_json).
ModelFile open_gguf(const std::filesystem::path& path, WeightsAs as = WeightsAs::floats);
ModelFile read_gguf(const GgufFile& file, WeightsAs as = WeightsAs::floats);

}  // namespace thimble
