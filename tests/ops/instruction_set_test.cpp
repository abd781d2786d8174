// Kernels are compiled for several instruction sets, and the machine chooses: all that it can run are tested.
// One that they are not compiled for chooses the scalar version.
#include <hwy/targets.h>

#include "ops/op_harness.h"

namespace thimble {
namespace {

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

TEST_P(EveryOp, CpuMatchesReferenceOnEveryInstructionSet) {
  SKIP_WITHOUT_CPU_KERNELS();
  const std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();
  for (const OpCase& op_case : facts().cases) {
    SCOPED_TRACE(op_case.name);
    const Results reference = run_op(def(), op_case, kReference);
    for (const std::int64_t target : targets) {
      SCOPED_TRACE(hwy::TargetName(target));
      const InstructionSet chosen(target);
      Conditions conditions = kCpu;
      conditions.layout = {3, 1};
      BoundOp op(def(), op_case, conditions);
      op.forward(Context());
      if (has_backward(def(), op_case))
        op.backward(Context());
      else
        op.d_in.clear();
      expect_guards_intact(op);
      expect_close(def(), op_case, reference, written(def(), op));
    }
  }
}

}  // namespace
}  // namespace thimble
