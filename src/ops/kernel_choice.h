// Which kernels run on this CPU, and why.
//
// The CPU level (base/machine.h) has to be applied to three dispatchers: our own kernels for
// specific instruction sets, Highway, and oneDNN.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/machine.h"

namespace thimble {

// Applies the level to Highway and oneDNN. It runs once before main(). The CPU backend calls it
// again, to throw if THIMBLE_CPU is invalid.
void apply_cpu_level();

// The level each dispatcher runs at. Highway has no level above avx512.
struct DispatchLevels {
  CpuLevel ours, highway, onednn;
};
DispatchLevels dispatch_levels();

struct KernelChoice {
  std::string_view work;  // "decoding"
  std::string kernel;     // "bf16 rows"
  std::string reason;     // "the CPU multiplies pairs of bf16 (AVX-512 BF16)"
};
std::vector<KernelChoice> kernel_choices();

std::string highway_version();  // the version compiled in

}  // namespace thimble
