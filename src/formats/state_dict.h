// Weights by name: between a safetensors file and a model's block.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "formats/safetensors.h"
#include "model/params.h"

namespace thimble {

// Reads every tensor of the table, under `prefix` + its name, into the block (block_size() elements).
// Anything missing or of another shape is one Error that lists them all. Tensors the table does not know are
// an error too, except those for which `ignore` (may be empty) returns true.
void read_state_dict(const SafetensorsFile& file, const ParamTable& table, std::string_view prefix,
                     std::span<float> block, const std::function<bool(std::string_view name)>& ignore = {});

// Adds every tensor of the block to the file, under `prefix` + its name, in f32. The block must outlive the
// writer.
void add_state_dict(SafetensorsWriter& writer, const ParamTable& table, std::string_view prefix,
                    std::span<const float> block);

}  // namespace thimble
