// Rows apart, pointers that no vector is aligned to, and not a byte written outside the tensors or read behind them.
#include "ops/op_harness.h"

namespace thimble {
namespace {

std::vector<std::vector<double>> contents(const std::vector<GuardedTensor>& tensors, std::uint32_t but = 0) {
  std::vector<std::vector<double>> all;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    all.push_back(tensors[i] && !has_bit(but, i) ? tensors[i].read() : std::vector<double>{});
  return all;
}

// Runs forward and backward, and looks at everything that must not change on the way.
Results run_watched(const OpDefinition& def, const OpCase& op_case, const Conditions& conditions,
                    const Context& context) {
  const std::uint32_t state = op_facts(&def).state;
  BoundOp op(def, op_case, conditions);
  const auto in = contents(op.in, state), d_out = contents(op.d_out);
  op.forward(context);
  EXPECT_EQ(contents(op.in, state), in) << "forward wrote to an input";
  if (has_backward(def, op_case)) {
    const auto out = contents(op.out);
    op.backward(context);
    EXPECT_EQ(contents(op.in, state), in) << "backward wrote to an input";
    EXPECT_EQ(contents(op.d_out), d_out) << "backward wrote to a gradient of an output";
    EXPECT_TRUE(def.loss || contents(op.out) == out) << "backward wrote to an output";
  } else {
    op.d_in.clear();
  }
  expect_guards_intact(op);
  return written(def, op);
}

TEST_P(EveryOp, WritesNothingOutsideItsTensors) {
  const Context context;  // one for all layouts: a plan made for one must not serve another
  for_stored_cases_too([&](Conditions cpu, const OpCase& op_case) {
    const Results reference = run_watched(def(), op_case, kReference, context);
    Results packed;
    for (const Layout layout : {Layout{0, 0}, Layout{3, 0}, Layout{0, 1}, Layout{5, 1}}) {
      SCOPED_TRACE(fmt::format("rows {} apart, shifted by {}", layout.gap, layout.shift));
      Conditions scalar = kReference;
      cpu.layout = scalar.layout = layout;
      if (layout.gap > 3) expect_same_bits(reference, run_watched(def(), op_case, scalar, context));
      const Results found = run_watched(def(), op_case, cpu, context);
      expect_close(def(), op_case, cpu.dtype, reference, found);
      // "A result depends on the row alone, never on its neighbours or its alignment" (cpu/simd-inl.h);
      // oneDNN says no such thing.
      if (packed.empty()) packed = found;
      if (facts().bits_for_any_threads) expect_same_bits(packed, found);
    }
  });
}

// What is read behind a tensor and thrown away shows in no result: here it ends the process.
TEST_P(EveryOp, ReadsNothingBehindItsTensors) {
  const Context context;
  for_stored_cases_too([&](Conditions cpu, const OpCase& op_case) {
    const Results anywhere = run_watched(def(), op_case, cpu, context);
    for (const std::int64_t gap : {0, 3}) {
      cpu.layout = {.gap = gap, .before_a_wall = true};
      expect_close(def(), op_case, cpu.dtype, anywhere, run_watched(def(), op_case, cpu, context));
    }
  });
}

// One tensor with its rows apart among packed ones: a kernel or a cached plan that takes one stride for
// another shows.
TEST_P(EveryOp, EveryTensorHasItsOwnStride) {
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
