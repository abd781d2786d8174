#include "ops/op_harness.h"
#include "ops/residual.h"

namespace thimble {
namespace {

TEST_P(EveryOp, CpuMatchesReference) {
  ASSERT_TRUE(has_kernels(def(), cpu_backend()));
  for_stored_cases_too([&](const Conditions& cpu, const OpCase& op_case) {
    expect_close(def(), op_case, cpu.dtype, run_op(def(), op_case, kReference), run_op(def(), op_case, cpu));
  });
}

// The planner stores gradients of values with many readers in f32. Each gradient of a call may be
// f32 next to bf16 rows, independently of the others.
TEST_P(EveryOp, GradientsMayBeWiderThanTheRows) {
  const Kernels& kernels = *cpu_backend().find(def());
  if (!kernels.wide_gradients || !has_kernels(def(), cpu_backend(), DType::bf16))
    GTEST_SKIP() << def().name << " takes gradients only in the dtype of its rows";
  for (const OpCase& op_case : cases_in(GetParam(), DType::bf16)) {
    if (!has_backward(def(), op_case)) continue;
    SCOPED_TRACE(op_case.name);
    const Results reference = run_op(def(), op_case, kReference);
    for (std::uint32_t outputs = 0; outputs < 1u << op_case.d_out.size(); ++outputs)
      for (std::uint32_t inputs = 0; inputs < 1u << op_case.in.size(); ++inputs) {
        if ((outputs & ~facts().graded_outputs) ||
            (inputs & (~inputs_that_are(def(), is::differentiable) | inputs_that_are(def(), is::parameter))))
          continue;
        SCOPED_TRACE(fmt::format("f32 gradients of outputs {:b}, inputs {:b}", outputs, inputs));
        Conditions mixed = kCpuBf16;
        mixed.wide_d_out = outputs;
        mixed.wide_d_in = inputs;
        expect_close(def(), op_case, DType::bf16, reference, run_op(def(), op_case, mixed));
      }
  }
}

// The planner reuses the memory of everything that the definition does not save.
TEST_P(EveryOp, BackwardReadsOnlySavedTensors) {
  for_cpu_cases([&](const Conditions& cpu, const OpCase& op_case) {
    if (!has_backward(def(), op_case)) return;
    for (Conditions conditions : {kReference, cpu}) {
      const Results expected = gradients(run_op(def(), op_case, conditions));
      conditions.poison_unsaved = true;
      expect_same_bits(expected, gradients(run_op(def(), op_case, conditions)));
    }
  });
}

// The planner passes ds only if the stream has later readers.
TEST(ResidualNorm, AMissingStreamGradientIsZero) {
  const OpDefinition& def = op::kResidualNorm;
  for (OpCase op_case : cases_in(&op::kResidualNorm, DType::f32)) {
    SCOPED_TRACE(op_case.name);
    op_case.d_out[0].numbers.assign(op_case.d_out[0].numbers.size(), 0);
    const Results zero = run_op(def, op_case, kReference);
    op_case.d_out[0] = {};
    const Results none = run_op(def, op_case, kReference);
    expect_same_bits(zero, none);
    expect_close(def, op_case, DType::f32, none, run_op(def, op_case, kCpu));
  }
}

}  // namespace
}  // namespace thimble
