// Folded models in a GGUF, there and back: the names llama.cpp has for their tensors, and the keys that are not those of
// every architecture.
//
//   apertus   xielu.alpha_p, .alpha_n, .beta, .eps    the constants at which xIELU is relu2
//   talkie    talkie.logit_scale                      1
//             blk.N.layer_output_scale                how much of the embedding layer N + 1 mixes in; 0 in the last
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/fold.h"
#include "formats/gguf_model.h"
#include "model/params.h"

namespace thimble {

bool is_folded_architecture(std::string_view architecture);

ExportedModel exported_model(const FoldedModel& folded);

// The config of a folded model of these sizes: what an importer fills in and then reads the tensors of.
ModelConfig folded_config(std::string_view architecture, ModelConfig sizes);

// Where each tensor lies in the file.
struct FoldedTensor {
  std::string name;
  std::vector<std::int64_t> dims;
  Role role;
  int layer;
  bool output_scale = false;  // the second number of a resid_mix, whose first is 1
};
std::vector<FoldedTensor> folded_tensors(std::string_view architecture, const ModelConfig& config);

// Keys that a folded model has beside the common ones; an importer refuses every other value.
GgufSettings folded_settings(std::string_view architecture);

}  // namespace thimble
