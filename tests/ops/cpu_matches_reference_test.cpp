#include "ops/op_harness.h"

namespace thimble {
namespace {

TEST_P(EveryOp, CpuMatchesReference) {
  SKIP_WITHOUT_CPU_KERNELS();
  for (const OpCase& op_case : facts().cases) {
    SCOPED_TRACE(op_case.name);
    expect_close(def(), op_case, run_op(def(), op_case, kReference), run_op(def(), op_case, kCpu));
  }
}

// The planner reuses the memory of everything else.
TEST_P(EveryOp, BackwardReadsOnlyWhatTheTableSaves) {
  SKIP_WITHOUT_CPU_KERNELS();
  for (const OpCase& op_case : facts().cases) {
    if (!has_backward(def(), op_case)) continue;
    SCOPED_TRACE(op_case.name);
    for (Conditions conditions : {kReference, kCpu}) {
      const Results expected = gradients(run_op(def(), op_case, conditions));
      conditions.poison_unsaved = true;
      expect_same_bits(expected, gradients(run_op(def(), op_case, conditions)));
    }
  }
}

// The planner gives ds only where the stream has later readers.
TEST(ResidualNorm, WithoutLaterReadersTheStreamHasNoOtherGradient) {
  const OpDef& def = op_def(Op::residual_norm);
  for (OpCase op_case : op_facts(Op::residual_norm).cases) {
    SCOPED_TRACE(op_case.name);
    op_case.d_out[0].numbers.assign(op_case.d_out[0].numbers.size(), 0);
    const Results zero = run_op(def, op_case, kReference);
    op_case.d_out[0] = {};
    const Results none = run_op(def, op_case, kReference);
    expect_same_bits(zero, none);
    if (has_kernels(def, Backend::cpu)) expect_close(def, op_case, none, run_op(def, op_case, kCpu));
  }
}

}  // namespace
}  // namespace thimble
