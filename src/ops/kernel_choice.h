// Which kernels will run on this processor, and why: for `thimble doctor`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace thimble {

struct KernelChoice {
  std::string_view work;  // "decoding"
  std::string kernel;     // "bf16 rows"
  std::string reason;     // "the CPU multiplies pairs of bf16 (AVX-512 BF16)"
};
std::vector<KernelChoice> kernel_choices();

std::string onednn_version();   // the one that runs: "2.6.3"
std::string highway_version();  // the one that was built with

}  // namespace thimble
