// The planner decides whether a gradient is stored (the first writer) or added to (later writers,
// and parameters); kernels must do both.
#include "ops/op_harness.h"
#include "ops/tolerances.h"

namespace thimble {
namespace {

// The gradients of `fresh` plus the earlier contents of those in the mask `added`.
Results with_earlier_contents(Results fresh, const OpCase& op_case, std::uint32_t added) {
  for (Result& result : fresh)
    for (std::size_t i = 0; i < op_case.in.size(); ++i) {
      if (result.name != gradient_name(i) || !has_bit(added, i)) continue;
      const std::vector<double> earlier = earlier_contents(op_case.in[i], i);
      for (std::size_t e = 0; e < earlier.size(); ++e) result.numbers[e] += earlier[e];
    }
  return fresh;
}

void expect_sums(const OpDefinition& def, const OpCase& op_case, DType dtype, const Results& expected,
                 const Results& found) {
  ASSERT_EQ(expected.size(), found.size());
  for (std::size_t r = 0; r < expected.size(); ++r)
    EXPECT_LE(error_of(expected[r].numbers, found[r].numbers, op_case.min_scale),
              tolerance_of(&def, dtype).gradient + adds_tolerance(dtype))
        << expected[r].name;
}

std::vector<Conditions> backends(const OpDefinition& def) {
  std::vector<Conditions> all = cpu_precisions(def);
  all.push_back(kReference);
  return all;
}

TEST_P(EveryOp, StoresOrAddsGradientsAsRequested) {
  for (const Conditions& conditions : backends(def()))
    for (const OpCase& op_case : cases_in(GetParam(), conditions.dtype)) {
      if (!has_backward(def(), op_case)) continue;
      SCOPED_TRACE(fmt::format("{} {}", dtype_name(conditions.dtype), op_case.name));
      const Results fresh = gradients(run_op(def(), op_case, conditions));

      Conditions earlier = conditions;
      earlier.earlier_contents = true;
      expect_sums(def(), op_case, conditions.dtype,
                  with_earlier_contents(fresh, op_case, inputs_that_are(def(), is::parameter)),
                  gradients(run_op(def(), op_case, earlier)));

      earlier.add = inputs_that_are(def(), is::differentiable);
      expect_sums(def(), op_case, conditions.dtype,
                  with_earlier_contents(fresh, op_case, inputs_that_are(def(), is::differentiable)),
                  gradients(run_op(def(), op_case, earlier)));
    }
}

TEST_P(EveryOp, OmittingAGradientDoesNotChangeTheOthers) {
  for (const Conditions& conditions : backends(def()))
    for (const OpCase& op_case : cases_in(GetParam(), conditions.dtype)) {
      if (!has_backward(def(), op_case)) continue;
      SCOPED_TRACE(fmt::format("{} {}", dtype_name(conditions.dtype), op_case.name));
      const Results all = run_op(def(), op_case, conditions);
      for (std::size_t i = 0; i < op_case.in.size(); ++i) {
        if (!op_case.in[i] || !def().input_is(i, is::differentiable)) continue;
        SCOPED_TRACE(gradient_name(i));
        Results others = all, only = all;
        std::erase_if(others, [&](const Result& result) { return result.name == gradient_name(i); });
        std::erase_if(only, [&](const Result& result) {
          return result.name.starts_with("gradient") && result.name != gradient_name(i);
        });
        Conditions partial = conditions;
        partial.requested = 1u << i;
        expect_same_bits(only, run_op(def(), op_case, partial));
        partial.requested = ~(1u << i);
        if (!gradients(others).empty()) expect_same_bits(others, run_op(def(), op_case, partial));
      }
    }
}

}  // namespace
}  // namespace thimble
