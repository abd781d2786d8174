// What llama.cpp calls the tensors of llama, qwen2 and qwen3.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "model/params.h"

namespace thimble {

struct GgufName {
  Role role;
  std::string_view name;  // {} is the layer

  std::string of(int layer) const;
};

std::span<const GgufName> gguf_names();

// The name of one of our tensors; an Error for what these architectures do not have.
std::string gguf_name(const Param& param);

// Are the rows of this tensor turned by RoPE?
bool is_turned(Role role);

}  // namespace thimble
