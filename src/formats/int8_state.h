// The int8 state of the parameter-golf scripts (research: 1.8), which they compress with zlib into a .int8.ptz:
//
//   {"__quant_format__": "int8_clean_per_row_v1",
//    "quantized": {name: int8 array}, "scales": {name: f16 [rows] or f32 []}, "dtypes": {name: "bfloat16"},
//    "passthrough": {name: f32 or f16 array},
//    "qmeta": {name: {"scheme": "per_row", "axis": 0}},            only matrices
//    "passthrough_orig_dtypes": {name: "float32"}}                 only what was rounded to f16
//
// numpy   train_gpt_mlx.py: a pickle of numpy arrays. Written with protocol 4 and numpy's oldest names, which every
//         numpy opens; read also as newer ones write it (protocol 5, _frombuffer, numpy._core).
// torch   train_gpt.py: torch.save, a zip with the pickle in data.pkl and the numbers of each tensor in data/N.
//
// Reading executes nothing (pickle.h). What is not exactly this is an Error.
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

// Not compressed yet. `tensors` are in the table's order, of 8 bits.
std::string int8_state(const ParamTable& table, std::span<const PackedTensor> tensors, PickledBy by);
std::vector<PackedTensor> read_int8_state(std::span<const std::byte> bytes, const std::string& name,
                                          const ParamTable& table);

// A state dict as torch.save writes it: final_model.pt.
std::string torch_state_dict(const ParamTable& table, std::span<const float> weights);

std::string int8_ptz(std::string_view state);  // compressed
// Of a file of any size, not more is unpacked than the model can need.
std::vector<PackedTensor> open_int8_ptz(const std::filesystem::path& path, const ParamTable& table);

// As open_state_dict (model_file.h) does.
ModelFile open_int8_state(const std::filesystem::path& path, const Config& config);

// An int8 state that is meant for this model: more than 65,536 elements are quantised, the rest is kept, in f32 where
// the name holds one of `keep_f32`. The embedding is a bfloat16 of theirs, and becomes one again.
struct Int8Stats {
  std::uint64_t payload_bytes = 0, float_bytes = 0;
  double ratio() const { return static_cast<double>(float_bytes) / static_cast<double>(payload_bytes); }
};
std::vector<PackedTensor> quantise_int8_state(const ParamTable& table, std::span<const float> weights,
                                              std::span<const std::string> keep_f32, Int8Stats& stats);

}  // namespace thimble
