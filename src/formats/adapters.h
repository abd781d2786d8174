// Adapters in files, and the models that they belong to.
//
// A checkpoint of a run that trains adapters (config key lora_rank) contains only these. Its
// metadata names the base: the model whose weights are frozen.
//
//   thimble.base          its absolute path
//   thimble.base_digest   of its weights as they are stored
//
// A PEFT folder, as the library of that name writes and reads it, contains
//
//   adapter_config.json         rank, alpha, target modules, and the base's path or name
//   adapter_model.safetensors   base_model.model.NAME.lora_A.weight and .lora_B.weight, with
//                               Transformers' names; thimble adds metadata thimble.base_digest
//
// open_model() opens both kinds together with their base.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/progress.h"
#include "formats/export.h"
#include "formats/model_file.h"

namespace thimble {

inline constexpr std::string_view kBaseKey = "thimble.base";
inline constexpr std::string_view kBaseDigestKey = "thimble.base_digest";

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

// Adds the adapters of a run, checkpoint or PEFT folder, times `scale`, to those of `model`, which
// was opened with WeightsAs::stored. Several adapters of one model may have different ranks and
// layers. Throws Error if they were made for a model of another shape or with other weights; a PEFT
// folder of another program does not say which weights, so only its shapes are checked.
void add_adapters(ModelFile& model, const std::filesystem::path& path, double scale = 1,
                  const ProgressOutput& progress = {});

struct NamedAdapter {
  std::filesystem::path path;
  double scale = 1;
};

// open_model() with further adapters. They need weights, so WeightsAs::none is refused.
ModelFile open_adapted(const std::filesystem::path& path, std::span<const NamedAdapter> adapters,
                       WeightsAs as, const ProgressOutput& progress = {});

// Replaces stored weights and adapters by their sum, as with WeightsAs::floats.
void merge(ModelFile& model);

// Rows of the tables in model_file.cpp and export.cpp.
ExportFormat peft_export();
bool is_peft_folder(const std::filesystem::path& folder);
ModelFile open_peft(const std::filesystem::path& folder, WeightsAs as, const ProgressOutput& progress);

}  // namespace thimble
