#pragma once

#include <hwy/targets.h>

#include <vector>

#include "base/machine.h"

namespace thimble {

// Runs the kernels of one CPU level for a scope: our own and the matching Highway target. oneDNN
// keeps the level of the process.
class InstructionSet {
 public:
  explicit InstructionSet(CpuLevel level) : scope_(level) {
#if HWY_ARCH_X86
    choose(level == CpuLevel::scalar ? HWY_SCALAR : level == CpuLevel::avx2 ? HWY_AVX2 | HWY_SCALAR : 0);
#endif
  }
  ~InstructionSet() {
    choose(0);
  }
  InstructionSet(const InstructionSet&) = delete;
  InstructionSet& operator=(const InstructionSet&) = delete;

 private:
  // 0: restores the best target.
  static void choose(std::int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }

  CpuLevelScope scope_;
};

// The levels that this process can run, lowest first.
inline std::vector<CpuLevel> cpu_levels() {
  std::vector<CpuLevel> levels;
  for (int level = 0; level <= static_cast<int>(cpu_level()); ++level)
    levels.push_back(static_cast<CpuLevel>(level));
  return levels;
}

}  // namespace thimble
