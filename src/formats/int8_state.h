// The int8 state of the parameter-golf scripts, which is compressed with zlib into a .int8.ptz:
//
//   {"__quant_format__": "int8_clean_per_row_v1",
//    "quantized": {name: int8 array}, "scales": {name: f16 [rows] or f32 []},
//    "dtypes": {name: "bfloat16"},
//    "passthrough": {name: f32 or f16 array},
//    "qmeta": {name: {"scheme": "per_row", "axis": 0}},            matrices only
//    "passthrough_orig_dtypes": {name: "float32"}}                 tensors rounded to f16 only
//
// numpy   train_gpt_mlx.py: a pickle of numpy arrays, with the bytes that Python 3.8 or newer and
//         numpy 2 write. The reader also accepts those of numpy 1 (numpy.core) and of protocol 4.
// torch   train_gpt.py: torch.save, a zip with the pickle in data.pkl and the numbers of each
//         tensor in data/N. The pickle has PyTorch's bytes; the zip does not, because those depend
//         on PyTorch's version and contain a random id.
//
// Reading executes no code (pickle.h). Any deviation from this format is an Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/model_file.h"
#include "pack/packed_tensor.h"

namespace thimble {

enum class PickledBy { numpy, torch };

// The uncompressed state. `tensors` are in the order of the table and have 8 bits.
std::string int8_state(const ParamTable& table, std::span<const PackedTensor> tensors, PickledBy by);
std::vector<PackedTensor> read_int8_state(std::span<const std::byte> bytes, const std::string& name,
                                          const ParamTable& table);

// A state dict in the format of torch.save: final_model.pt.
std::string torch_state_dict(const ParamTable& table, std::span<const float> weights);

std::string int8_ptz(std::string_view state);  // compressed, as Python does with zlib level 9
// The uncompressed size is limited by the size of the model, not by that of the file.
std::vector<PackedTensor> open_int8_ptz(const std::filesystem::path& path, const ParamTable& table);

// See open_state_dict (model_file.h).
ModelFile open_int8_state(const std::filesystem::path& path, const Config& config);

// Quantizes for an int8 state: tensors of more than 65,536 elements become int8. The others are
// stored as f16, or as f32 if the name contains one of `keep_f32`. The scripts keep the embedding
// in bfloat16, so it is restored to that type.
struct Int8Stats {
  std::uint64_t payload_bytes = 0, float_bytes = 0;
  double ratio() const { return static_cast<double>(float_bytes) / static_cast<double>(payload_bytes); }
};
std::vector<PackedTensor> quantize_int8_state(const ParamTable& table, std::span<const float> weights,
                                              std::span<const std::string> keep_f32, Int8Stats& stats);

}  // namespace thimble
