// What other people call a model: the name follows from the config, as the tensors' names do.
#pragma once

#include <string_view>

#include "model/config.h"

namespace thimble {

// "llama", "qwen2", "qwen3", "gpt2", "microgpt" or "golf" if the config is exactly of that family, whatever
// its sizes; "thimble" for every other combination of switches.
std::string_view architecture_of(const ModelConfig& config);

}  // namespace thimble
