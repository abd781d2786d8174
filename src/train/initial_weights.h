// --init: the weights of another model as the start of a new run.
#pragma once

#include <span>
#include <vector>

#include "config/builder.h"
#include "formats/model_file.h"
#include "model/params.h"

namespace thimble {

// The model's own settings, where the user gave none. Where the user named a preset, that must be of the same model:
// all settings that differ are listed in one Error.
void take_model_settings(const ModelFile& from, bool preset_was_named, ConfigBuilder& settings);

// Laid out for `config`. Tensors that are missing, left over or of another shape are listed, all in one Error.
std::vector<float> initial_weights(const ModelFile& from, const ModelConfig& config);

// A row of the embedding means the token that it was trained with: an id that is text for both must be the same text.
// What one of the two lacks, and special tokens, may differ.
void check_same_tokens(const ModelFile& from, const Tokenizer& tokenizer);

// NaN and infinity are an Error that names the parameter.
void check_finite(const ParamTable& params, std::span<const float> weights);

}  // namespace thimble
