#pragma once

#include <hwy/targets.h>

#include <cstdint>

namespace thimble {

// Makes Highway choose one instruction set for a scope.
class InstructionSet {
 public:
  explicit InstructionSet(std::int64_t target) { choose(target); }
  ~InstructionSet() { choose(0); }  // 0: the best again
  InstructionSet(const InstructionSet&) = delete;
  InstructionSet& operator=(const InstructionSet&) = delete;

 private:
  static void choose(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

}  // namespace thimble
