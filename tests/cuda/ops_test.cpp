// Every op with CUDA kernels, compared with the reference on the cases of tests/ops.
#include <set>

#include "cuda/device.h"
#include "ops/op_harness.h"
#include "ops/tolerances.h"

namespace thimble {
namespace {

Conditions cuda_in(DType dtype) {
  return {.backend = cuda_backend(), .dtype = dtype};
}

// One GPU and context for all tests: state kept from one call must not affect another.
const Context* gpu_context(std::string& reason) {
  static const DeviceChoice gpu = find_gpu();
  static const std::unique_ptr<Context> context =
      gpu.runtime ? std::make_unique<Context>(gpu.runtime) : nullptr;
  reason = gpu.reason;
  return context.get();
}

class EveryOpOnCuda : public EveryOp {
 protected:
  void SetUp() override {
    std::string reason;
    context_ = gpu_context(reason);
    if (!context_) GTEST_SKIP() << reason;
    if (!cuda_backend().find(def())) GTEST_SKIP() << def().name << " has no CUDA kernel yet";
  }

  const Context& context() const { return *context_; }
  const Kernels& kernels() const { return *cuda_backend().find(def()); }
  Results run(const OpCase& op_case, const Conditions& conditions) const {
    return run_op(def(), op_case, conditions, context());
  }

  // Calls body(conditions, op_case) for every dtype that has kernels.
  template <class Body>
  void for_cuda_cases(Body body) const {
    for (const Conditions& cuda : {cuda_in(DType::f32), cuda_in(DType::bf16), cuda_in(DType::f16)}) {
      if (!has_kernels(def(), cuda_backend(), cuda.dtype)) continue;
      for (const OpCase& op_case : cases_in(GetParam(), cuda.dtype)) {
        SCOPED_TRACE(fmt::format("{} {}", dtype_name(cuda.dtype), op_case.name));
        body(cuda, op_case);
      }
    }
  }

 private:
  const Context* context_ = nullptr;
};

TEST_P(EveryOpOnCuda, MatchesReference) {
  for_cuda_cases([&](const Conditions& cuda, const OpCase& op_case) {
    expect_close(def(), op_case, cuda.dtype, run_op(def(), op_case, kReference), run(op_case, cuda));
  });
}

TEST_P(EveryOpOnCuda, SameBitsTwice) {
  for_cuda_cases([&](const Conditions& cuda, const OpCase& op_case) {
    expect_same_bits(run(op_case, cuda), run(op_case, cuda));
  });
}

// Strided rows, at unaligned and at aligned addresses.
TEST_P(EveryOpOnCuda, WritesNothingOutsideItsTensors) {
  for_cuda_cases([&](Conditions cuda, const OpCase& op_case) {
    const Results reference = run_op(def(), op_case, kReference);
    for (const Layout layout : {Layout{0, 0}, Layout{3, 0}, Layout{0, 1}, Layout{5, 1}, Layout{8, 0}}) {
      SCOPED_TRACE(fmt::format("gap {} between rows, shifted by {}", layout.gap, layout.shift));
      cuda.layout = layout;
      BoundOp op(def(), op_case, cuda);
      op.forward(context());
      if (has_backward(def(), op_case))
        op.backward(context());
      else
        op.d_in.clear();
      expect_guards_intact(op);
      expect_close(def(), op_case, cuda.dtype, reference, written(def(), op));
    }
  });
}

// One strided tensor among packed ones reveals kernels that use the stride of another tensor.
TEST_P(EveryOpOnCuda, UsesTheStrideOfEachTensor) {
  for_cuda_cases([&](Conditions cuda, const OpCase& op_case) {
    if (op_case.large) return;
    const Results reference = run_op(def(), op_case, kReference);
    const auto tensors = static_cast<int>(2 * op_case.in.size() + 2 * op_case.d_out.size());
    for (int place = 0; place < tensors; ++place) {
      SCOPED_TRACE(fmt::format("tensor {}", place));
      cuda.layout.gap = 3;
      cuda.laid_out = place;
      expect_close(def(), op_case, cuda.dtype, reference, run(op_case, cuda));
    }
  });
}

TEST_P(EveryOpOnCuda, BackwardReadsOnlySavedTensors) {
  for_cuda_cases([&](Conditions cuda, const OpCase& op_case) {
    if (!has_backward(def(), op_case)) return;
    const Results expected = gradients(run(op_case, cuda));
    cuda.poison_unsaved = true;
    expect_same_bits(expected, gradients(run(op_case, cuda)));
  });
}

TEST_P(EveryOpOnCuda, AddsToGradientsAsRequested) {
  for_cuda_cases([&](Conditions cuda, const OpCase& op_case) {
    if (!has_backward(def(), op_case)) return;
    const Results fresh = gradients(run(op_case, cuda));
    cuda.earlier_contents = true;
    cuda.add = inputs_that_are(def(), is::differentiable);
    const Results found = gradients(run(op_case, cuda));
    ASSERT_EQ(fresh.size(), found.size());
    for (std::size_t r = 0; r < fresh.size(); ++r) {
      std::vector<double> expected = fresh[r].numbers;
      for (std::size_t i = 0; i < op_case.in.size(); ++i) {
        if (fresh[r].name != gradient_name(i)) continue;
        const std::vector<double> earlier = earlier_contents(op_case.in[i], i);
        for (std::size_t e = 0; e < earlier.size(); ++e) expected[e] += earlier[e];
      }
      EXPECT_LE(error_of(expected, found[r].numbers, op_case.min_scale),
                tolerance_of(&def(), cuda.dtype).gradient + adds_tolerance(cuda.dtype))
          << fresh[r].name;
    }
  });
}

TEST_P(EveryOpOnCuda, OmittingGradientsDoesNotChangeTheOthers) {
  for_cuda_cases([&](const Conditions& cuda, const OpCase& op_case) {
    if (!has_backward(def(), op_case)) return;
    const Results all = run(op_case, cuda);
    for (std::size_t i = 0; i < op_case.in.size(); ++i) {
      if (!op_case.in[i] || !def().input_is(i, is::differentiable)) continue;
      SCOPED_TRACE(gradient_name(i));
      Results only = all;
      std::erase_if(only, [&](const Result& result) {
        return result.name.starts_with("gradient") && result.name != gradient_name(i);
      });
      Conditions partial = cuda;
      partial.requested = 1u << i;
      expect_same_bits(only, run(op_case, partial));
    }
  });
}

TEST_P(EveryOpOnCuda, GradientsMayBeWiderThanTheRows) {
  if (!kernels().wide_gradients || !has_kernels(def(), cuda_backend(), DType::bf16))
    GTEST_SKIP() << def().name << " takes gradients only in the dtype of its rows";
  for_cuda_cases([&](Conditions mixed, const OpCase& op_case) {
    if (mixed.dtype == DType::f32 || !has_backward(def(), op_case)) return;
    mixed.wide_d_out = facts().graded_outputs;
    mixed.wide_d_in = inputs_that_are(def(), is::differentiable) & ~inputs_that_are(def(), is::parameter);
    expect_close(def(), op_case, mixed.dtype, run_op(def(), op_case, kReference), run(op_case, mixed));
  });
}

// A NaN in an input propagates wherever the formula propagates it, so that its step is skipped.
TEST_P(EveryOpOnCuda, NanPropagates) {
  for_cuda_cases([&](const Conditions& cuda, OpCase op_case) {
    if (op_case.large) return;
    for (Values& values : op_case.in) {
      if (!values || values.integers()) continue;
      double& middle = values.numbers[values.numbers.size() / 2];
      const double before = std::exchange(middle, std::nan(""));
      const Results reference = run_op(def(), op_case, kReference), found = run(op_case, cuda);
      middle = before;
      for (std::size_t r = 0; r < reference.size(); ++r)
        for (std::size_t e = 0; e < reference[r].numbers.size(); ++e)
          ASSERT_TRUE(std::isfinite(reference[r].numbers[e]) || !std::isfinite(found[r].numbers[e]))
              << reference[r].name << ", element " << e << " is " << found[r].numbers[e];
    }
  });
}

INSTANTIATE_TEST_SUITE_P(, EveryOpOnCuda, ::testing::ValuesIn([] {
                           std::vector<Op> ops;
                           for (const OpDefinition& def : every_op()) ops.push_back(&def);
                           return ops;
                         }()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace thimble
