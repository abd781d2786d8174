// Kernels are compiled for several instruction sets; tests every set that this machine can run.
#include "ops/instruction_set.h"
#include "ops/op_harness.h"

namespace thimble {
namespace {

TEST_P(EveryOp, CpuMatchesReferenceOnEveryInstructionSet) {
  for_stored_cases_too([&](const Conditions& cpu, const OpCase& op_case) {
    const Results reference = run_op(def(), op_case, kReference);
    for (const CpuLevel level : cpu_levels()) {
      SCOPED_TRACE(cpu_level_name(level));
      const InstructionSet chosen(level);
      Conditions conditions = cpu;
      conditions.layout = {3, 1};
      BoundOp op(def(), op_case, conditions);
      op.forward(Context());
      if (has_backward(def(), op_case))
        op.backward(Context());
      else
        op.d_in.clear();
      expect_guards_intact(op);
      expect_close(def(), op_case, cpu.dtype, reference, written(def(), op));
    }
  });
}

}  // namespace
}  // namespace thimble
