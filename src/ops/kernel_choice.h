// Which kernels run on this CPU, and why.
//
// The CPU level (base/machine.h) has to reach three dispatchers: the kernels of our own that are written for one
// instruction set, Highway's, and oneDNN's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/machine.h"

namespace thimble {

// Hands the level to Highway and oneDNN. Runs once, before main; the CPU backend calls it again, to throw what is wrong with
// THIMBLE_CPU.
void apply_cpu_level();

// What each dispatcher works at. Highway has nothing above avx512.
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

std::string highway_version();  // the one that was built with

}  // namespace thimble
