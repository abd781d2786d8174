// --init: starts a new run from the weights of another model.
#pragma once

#include <span>

#include "config/builder.h"
#include "formats/model_file.h"
#include "model/params.h"

namespace thimble {

// Copies the model's settings into `settings` where the user gave none. If the user named a preset,
// its model settings must match; all differences are listed in one Error.
void take_model_settings(const ModelFile& from, bool preset_was_named, ConfigBuilder& settings);

// One Error lists all tensors of `from` that are missing, unexpected or of a different shape. Needs
// only its config.
void check_fits(const ModelFile& from, const ModelConfig& config);

// Copies the weights into the layout of `config`.
void copy_weights(const ModelFile& from, const ModelConfig& config, std::span<float> weights);

// An embedding row belongs to the token it was trained with, so an id that is a text token in both
// tokenizers must have the same bytes. Special tokens and ids that only one of them has may differ.
void check_same_tokens(const ModelFile& from, const Tokenizer& tokenizer);

// Throws an Error that names the parameter if a weight is NaN or infinite.
void check_finite(const ParamTable& params, std::span<const float> weights);

}  // namespace thimble
