// A model for inference alone, as one safetensors file: weights under the params table's names, the config,
// the tokenizer if there is one, digests. Of training nothing but, in f32, what the model did then (record_keys.h). Any safetensors reader opens it; model_file.h
// says what is in its metadata.
#pragma once

#include <filesystem>

#include "base/files.h"
#include "formats/model_file.h"

namespace thimble {

// `dtype`: f32, bf16 or f16. A weight that f16 cannot hold is an Error that names its tensor.
void write_model(FileOps& ops, const std::filesystem::path& path, Existing existing, const ModelFile& model,
                 DType dtype, const Inspector& inspect = {});

}  // namespace thimble
