#pragma once

#include <hwy/targets.h>

#include <cstdint>
#include <cstdlib>

namespace thimble {

// Makes Highway choose one instruction set for a scope, in which the kernels that are written for AVX-512 alone step
// back: what is left runs everywhere.
class InstructionSet {
 public:
  explicit InstructionSet(std::int64_t target) {
    setenv("THIMBLE_WITHOUT", "avx512f,avx512bw", 1);
    choose(target);
  }
  ~InstructionSet() {
    unsetenv("THIMBLE_WITHOUT");
    choose(0);  // the best again
  }
  InstructionSet(const InstructionSet&) = delete;
  InstructionSet& operator=(const InstructionSet&) = delete;

 private:
  static void choose(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

}  // namespace thimble
