// .npz: a zip of arrays, NAME.npy each, as numpy.savez and mlx.savez write them.
//
// Read are float32, float16 and bfloat16 (which MLX spells "V2") in C order; written is float32. Anything else is an
// Error that names the array. Nothing in the file is executed: an array of objects, which numpy would unpickle, is
// refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "formats/model_file.h"

namespace thimble {

struct NamedArray {
  std::string name;
  std::vector<std::int64_t> dims;
  std::vector<float> values;
  std::string dtype;  // in the file: "F32", "F16" or "BF16"
};

std::vector<NamedArray> read_npz(std::span<const std::byte> bytes, const std::string& name);

// Every tensor of the table, in its order.
std::string npz_of(const ParamTable& table, std::span<const float> weights);

// As open_state_dict does with safetensors (model_file.h).
ModelFile open_npz(const std::filesystem::path& path, const Config& config, std::string_view prefix);

}  // namespace thimble
