// validate_call rejects calls that shape rules do not check: outputs and gradients with wrong
// shapes, and tensors that overlap.
#include <algorithm>

#include "base/error.h"
#include "ops/op_harness.h"
#include "ops/residual.h"

namespace thimble {
namespace {

// A valid call of an op, for tests to invalidate.
class Call {
 public:
  explicit Call(const OpDefinition& def)
      : def_(def),
        case_(*std::ranges::find_if(cases_in(&def, DType::f32),
                                    [](const OpCase& c) { return c.in[0].shape.rows > 1; })),
        bound_(def, case_, kReference) {
    for (const GuardedTensor& one : bound_.in) in.push_back(one.tensor());
    for (const GuardedTensor& one : bound_.out) out.push_back(one.tensor());
    for (const GuardedTensor& one : bound_.d_out) d_out.push_back(one.tensor());
    for (const GuardedTensor& one : bound_.d_in) d_in.push_back(one.tensor());
  }

  std::vector<Tensor> in, out, d_out, d_in;

  void forward_only() {
    d_out.clear();
    d_in.clear();
  }

  // The error message of the call, "" if it is accepted.
  std::string rejection(std::uint32_t add = 0) const {
    try {
      validate_call(def_, reference_backend(),
                    {.in = in,
                     .out = out,
                     .d_out = d_out,
                     .d_in = d_in,
                     .add = add,
                     .attributes = case_.attributes,
                     .scratch = {}});
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }

  // Modifies one tensor, expects an error, and restores the tensor.
  template <class Modify>
  void expect_rejected(std::string_view why, Tensor& tensor, Modify modify) const {
    const Tensor right = tensor;
    modify(tensor);
    const std::string message = rejection();
    EXPECT_TRUE(message.starts_with(fmt::format("[{}] ", def_.name))) << why << ", got: " << message;
    tensor = right;
  }
  void expect_overlap_rejected(std::string_view why, Tensor& tensor, const Tensor& other) const {
    if (other) expect_rejected(why, tensor, [&](Tensor& t) { t.data = other.data; });
  }

 private:
  const OpDefinition& def_;
  const OpCase& case_;
  BoundOp bound_;
};

void row_short(Tensor& t) {
  t.rows -= 1;
}
void column_more(Tensor& t) {
  t.cols += 1;
  t.stride += 1;
}
void other_dtype(Tensor& t) {
  t.dtype = DType::f32;
}

TEST(ValidateCall, AcceptsAValidCall) {
  for (const OpDefinition& def : every_op()) EXPECT_EQ(Call(def).rejection(), "");
}

// Binds as for the CPU in bf16, then removes features of the kernels.
TEST(ValidateCall, RejectsDtypesThatTheKernelsDoNotSupport) {
  const OpDefinition& rmsnorm = op::kRmsNorm;
  const OpCase& op_case = cases_in(&op::kRmsNorm, DType::bf16).front();
  const auto message = [&](const Kernels& kernels, const Conditions& conditions) -> std::string {
    OpDefinition def = rmsnorm;
    def.cpu = &kernels;
    try {
      BoundOp op(def, op_case, conditions);
      op.forward(Context());
      op.backward(Context());
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  Kernels kernels = *cpu_backend().find(rmsnorm);
  Conditions wide = kCpuBf16;
  wide.wide_d_in = 1;
  EXPECT_EQ(message(kernels, kCpuBf16), "");
  EXPECT_EQ(message(kernels, wide), "");
  kernels.wide_gradients = false;
  EXPECT_EQ(message(kernels, kCpuBf16), "");
  EXPECT_NE(message(kernels, wide).find("[rmsnorm] gradient of input 0 is f32"), std::string::npos);
  kernels.backward = nullptr;
  EXPECT_EQ(message(kernels, kCpuBf16), "[rmsnorm] has no cpu kernel for backward");
  kernels.rows = dtypes({DType::f32});
  EXPECT_EQ(message(kernels, kCpuBf16), "[rmsnorm] has no cpu kernel for bf16");
}

TEST(ValidateCall, RejectsInvalidOutputs) {
  for (const OpDefinition& def : every_op()) {
    SCOPED_TRACE(def.name);
    Call call(def);
    for (Tensor& out : call.out) {
      call.expect_rejected("one row too few", out, row_short);
      call.expect_rejected("one column too many", out, column_more);
      call.expect_rejected("wrong dtype", out, other_dtype);
      call.expect_rejected("stride less than the width", out, [](Tensor& t) { t.stride = t.cols - 1; });
      call.expect_rejected("another device", out, [](Tensor& t) { t.device = Device::cuda; });
    }
    call.out.pop_back();
    EXPECT_NE(call.rejection(), "") << "one output too few";
  }
}

TEST(ValidateCall, RejectsInvalidInputs) {
  for (const OpDefinition& def : every_op()) {
    SCOPED_TRACE(def.name);
    Call call(def);
    for (Tensor& in : call.in) {
      if (!in) continue;
      if (in.rows > 1 && in.cols > 1)
        call.expect_rejected("stride less than the width", in, [](Tensor& t) { t.stride = t.cols - 1; });
      call.expect_rejected("another device", in, [](Tensor& t) { t.device = Device::cuda; });
    }
  }
}

// In forward only: in backward, tensors that are not saved may have no memory.
TEST(ValidateCall, RejectsTensorsWithoutMemory) {
  for (const OpDefinition& def : every_op()) {
    SCOPED_TRACE(def.name);
    Call call(def);
    call.forward_only();
    for (std::vector<Tensor>* tensors : {&call.in, &call.out})
      for (Tensor& tensor : *tensors)
        if (tensor) call.expect_rejected("no memory", tensor, [](Tensor& t) { t.data = nullptr; });
  }
}

TEST(ValidateCall, RejectsOverlappingTensors) {
  for (const OpDefinition& def : every_op()) {
    SCOPED_TRACE(def.name);
    Call call(def);
    for (std::size_t i = 0; i < call.out.size(); ++i) {
      for (const Tensor& in : call.in)
        call.expect_overlap_rejected("an output overlaps an input", call.out[i], in);
      for (std::size_t j = 0; j < i; ++j)
        call.expect_overlap_rejected("an output overlaps an output", call.out[i], call.out[j]);
    }
    for (std::size_t i = 0; i < call.d_in.size(); ++i) {
      Tensor& gradient = call.d_in[i];
      if (!gradient) continue;
      for (std::size_t j = 0; j < call.in.size(); ++j)
        if (def.input_is(j, is::saved))
          call.expect_overlap_rejected("a gradient overlaps an input that backward reads", gradient,
                                       call.in[j]);
      for (std::size_t j = 0; j < call.out.size(); ++j)
        if (def.saves_output(j))
          call.expect_overlap_rejected("a gradient overlaps an output that backward reads", gradient,
                                       call.out[j]);
      for (const Tensor& d_out : call.d_out)
        if (!def.input_is(i, is::passes_gradient))
          call.expect_overlap_rejected("a gradient overlaps the gradient of an output", gradient, d_out);
      for (std::size_t j = 0; j < i; ++j)
        call.expect_overlap_rejected("a gradient overlaps another", gradient, call.d_in[j]);
    }
  }
}

// With is::passes_gradient, d_in may share all of d_out's memory if nothing is added to it.
TEST(ValidateCall, AcceptsAPassedGradientInTheMemoryOfItsOutput) {
  Call call(op::kAddScaled);
  ASSERT_TRUE(op::kAddScaled.input_is(0, is::passes_gradient));
  call.d_in[0] = call.d_out[0];
  EXPECT_EQ(call.rejection(), "");
  EXPECT_NE(call.rejection(/*add=*/1), "");
  call.expect_rejected("partial overlap", call.d_in[0], [](Tensor& t) { t.data = t.row<double>(0) + 1; });
  call.d_in[1] = call.d_out[0];
  EXPECT_NE(call.rejection(), "") << "the gradient of another input overlaps";
}

TEST(ValidateCall, RejectsInvalidOrUnexpectedGradients) {
  for (const OpDefinition& def : every_op()) {
    SCOPED_TRACE(def.name);
    Call call(def);
    for (std::vector<Tensor>* gradients : {&call.d_in, &call.d_out})
      for (Tensor& gradient : *gradients) {
        if (!gradient) continue;
        call.expect_rejected("one row too few", gradient, row_short);
        call.expect_rejected("one column too many", gradient, column_more);
        call.expect_rejected("wrong dtype", gradient, other_dtype);
      }
    const std::vector<Tensor> spare = Call(def).out;
    for (std::size_t i = 0; i < call.in.size(); ++i)
      if (call.in[i] && !def.input_is(i, is::differentiable))
        call.expect_rejected("gradient of an input without gradient", call.d_in[i], [&](Tensor& t) {
          t = call.in[i];
          t.data = spare[0].data;
        });
  }
}

TEST(ValidateCall, RejectsMoreGradientsThanTensors) {
  for (const OpDefinition& def : every_op()) {
    SCOPED_TRACE(def.name);
    Call more_in(def), more_out(def), spare(def);
    more_in.d_in.resize(more_in.in.size() + 1, spare.out[0]);
    EXPECT_NE(more_in.rejection(), "") << "more gradients than inputs";
    more_out.d_out.resize(more_out.out.size() + 1, spare.out[0]);
    EXPECT_NE(more_out.rejection(), "") << "more gradients than outputs";
  }
}

}  // namespace
}  // namespace thimble
