// Adapters in files, and the models that they belong to.
//
// A checkpoint of a run that trains adapters (config key lora_rank) contains only these. Its
// metadata names the base: the model whose weights are frozen.
//
//   thimble.base          its absolute path
//   thimble.base_digest   of its weights as they are stored
//
// open_model() opens such a checkpoint together with its base.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/progress.h"
#include "formats/model_file.h"

namespace thimble {

inline constexpr std::string_view kBaseKey = "thimble.base";
inline constexpr std::string_view kBaseDigestKey = "thimble.base_digest";

struct AdapterBase {
  std::string path;
  std::string digest;
};

// The base of a model that was opened with WeightsAs::stored.
AdapterBase base_of(const ModelFile& model);

// The weights of a model for training adapters beside them.
struct FrozenModel {
  AdapterBase base;
  std::shared_ptr<const StoredWeights> weights;  // as the computation in a dtype needs them
};

// `model` was opened with WeightsAs::stored.
FrozenModel frozen(ModelFile model, Device device, DType dtype);

// Opens the base with WeightsAs::stored. Throws Error if it is missing or has other weights. `user`
// names the file that needs it.
ModelFile open_base(const AdapterBase& base, std::string_view user, const ProgressOutput& progress = {});

}  // namespace thimble
