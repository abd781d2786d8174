// Strided and unaligned tensors: nothing is written outside them or read past their end.
#include "ops/op_harness.h"

namespace thimble {
namespace {

std::vector<std::vector<double>> contents(const std::vector<GuardedTensor>& tensors, std::uint32_t but = 0) {
  std::vector<std::vector<double>> all;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    all.push_back(tensors[i] && !has_bit(but, i) ? tensors[i].read() : std::vector<double>{});
  return all;
}

// Runs forward and backward, and checks that inputs and gradients of outputs do not change.
Results run_watched(const OpDefinition& def, const OpCase& op_case, const Conditions& conditions,
                    const Context& context) {
  const std::uint32_t state = op_facts(&def).state;
  BoundOp op(def, op_case, conditions);
  const auto in = contents(op.in, state), d_out = contents(op.d_out);
  op.forward(context);
  EXPECT_EQ(contents(op.in, state), in) << "forward modified an input";
  if (has_backward(def, op_case)) {
    const auto out = contents(op.out);
    op.backward(context);
    EXPECT_EQ(contents(op.in, state), in) << "backward modified an input";
    EXPECT_EQ(contents(op.d_out), d_out) << "backward modified a gradient of an output";
    EXPECT_TRUE(def.loss || contents(op.out) == out) << "backward modified an output";
  } else {
    op.d_in.clear();
  }
  expect_guards_intact(op);
  return written(def, op);
}

TEST_P(EveryOp, WritesNothingOutsideItsTensors) {
  // Shared by all layouts: a cached plan must not be used for another layout.
  const Context context;
  for_stored_cases_too([&](Conditions cpu, const OpCase& op_case) {
    const Results reference = run_watched(def(), op_case, kReference, context);
    Results packed;
    for (const Layout layout : {Layout{0, 0}, Layout{3, 0}, Layout{0, 1}, Layout{5, 1}}) {
      SCOPED_TRACE(fmt::format("gap {} between rows, shifted by {}", layout.gap, layout.shift));
      Conditions scalar = kReference;
      cpu.layout = scalar.layout = layout;
      if (layout.gap > 3) expect_same_bits(reference, run_watched(def(), op_case, scalar, context));
      const Results found = run_watched(def(), op_case, cpu, context);
      expect_close(def(), op_case, cpu.dtype, reference, found);
      // Our kernels have the same bits for every alignment (cpu/simd-inl.h); oneDNN does not.
      if (packed.empty()) packed = found;
      if (facts().bits_for_any_threads) expect_same_bits(packed, found);
    }
  });
}

// A value read past the end and discarded does not show in a result; a guard page makes it crash.
TEST_P(EveryOp, ReadsNothingPastItsTensors) {
  const Context context;
  for_stored_cases_too([&](Conditions cpu, const OpCase& op_case) {
    const Results anywhere = run_watched(def(), op_case, cpu, context);
    for (const std::int64_t gap : {0, 3}) {
      cpu.layout = {.gap = gap, .at_guard_page = true};
      expect_close(def(), op_case, cpu.dtype, anywhere, run_watched(def(), op_case, cpu, context));
    }
  });
}

// One strided tensor among packed ones reveals kernels or cached plans that use another's stride.
TEST_P(EveryOp, UsesTheStrideOfEachTensor) {
  const Context context;
  for_stored_cases_too([&](const Conditions& cpu, const OpCase& op_case) {
    if (op_case.large) return;
    const Results packed = run_watched(def(), op_case, cpu, context);
    const auto tensors = static_cast<int>(2 * op_case.in.size() + 2 * op_case.d_out.size());
    for (int place = 0; place < tensors; ++place) {
      SCOPED_TRACE(fmt::format("tensor {}", place));
      Conditions conditions = cpu;
      conditions.layout.gap = 3;
      conditions.laid_out = place;
      expect_close(def(), op_case, cpu.dtype, packed, run_watched(def(), op_case, conditions, context));
    }
  });
}

}  // namespace
}  // namespace thimble
