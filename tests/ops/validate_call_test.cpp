// What can be wrong with a call beyond its shapes: outputs and gradients that do not fit, memory that is
// shared.
#include <algorithm>

#include "base/error.h"
#include "ops/op_harness.h"
#include "ops/residual.h"

namespace thimble {
namespace {

// A good call of an op, to be spoiled.
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

  // Why the call is refused, "" if it is taken.
  std::string refusal(std::uint32_t add = 0) const {
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

  // With one tensor spoiled, which is put right again.
  template <class Spoil>
  void expect_refused(std::string_view why, Tensor& tensor, Spoil spoil) const {
    const Tensor right = tensor;
    spoil(tensor);
    const std::string said = refusal();
    EXPECT_TRUE(said.starts_with(fmt::format("[{}] ", def_.name))) << why << ", said: " << said;
    tensor = right;
  }
  void expect_refused_over(std::string_view why, Tensor& tensor, const Tensor& other) const {
    if (other) expect_refused(why, tensor, [&](Tensor& t) { t.data = other.data; });
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

TEST(ValidateCall, TakesAGoodCall) {
  for (const OpDefinition& def : every_op()) EXPECT_EQ(Call(def).refusal(), "");
}

// Bound as the cpu would, in bf16; then asked of kernels that lack something.
TEST(ValidateCall, RefusesByNameWhatTheKernelsDoNotWorkIn) {
  const OpDefinition& rmsnorm = op::kRmsNorm;
  const OpCase& op_case = cases_in(&op::kRmsNorm, DType::bf16).front();
  const auto said = [&](const Kernels& kernels, const Conditions& conditions) -> std::string {
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
  EXPECT_EQ(said(kernels, kCpuBf16), "");
  EXPECT_EQ(said(kernels, wide), "");
  kernels.wide_gradients = false;
  EXPECT_EQ(said(kernels, kCpuBf16), "");
  EXPECT_NE(said(kernels, wide).find("[rmsnorm] gradient of input 0 is f32"), std::string::npos);
  kernels.backward = nullptr;
  EXPECT_EQ(said(kernels, kCpuBf16), "[rmsnorm] has no cpu kernel for backward");
  kernels.rows = dtypes({DType::f32});
  EXPECT_EQ(said(kernels, kCpuBf16), "[rmsnorm] has no cpu kernel for bf16");
}

TEST(ValidateCall, RefusesOutputsThatDoNotFit) {
  for (const OpDefinition& def : every_op()) {
    SCOPED_TRACE(def.name);
    Call call(def);
    for (Tensor& out : call.out) {
      call.expect_refused("a row short", out, row_short);
      call.expect_refused("a column too many", out, column_more);
      call.expect_refused("of another dtype", out, other_dtype);
      call.expect_refused("rows nearer than their width", out, [](Tensor& t) { t.stride = t.cols - 1; });
      call.expect_refused("another device", out, [](Tensor& t) { t.device = Device::cuda; });
    }
    call.out.pop_back();
    EXPECT_NE(call.refusal(), "") << "an output short";
  }
}

TEST(ValidateCall, RefusesInputsThatDoNotFit) {
  for (const OpDefinition& def : every_op()) {
    SCOPED_TRACE(def.name);
    Call call(def);
    for (Tensor& in : call.in) {
      if (!in) continue;
      if (in.rows > 1 && in.cols > 1)
        call.expect_refused("rows nearer than their width", in, [](Tensor& t) { t.stride = t.cols - 1; });
      call.expect_refused("another device", in, [](Tensor& t) { t.device = Device::cuda; });
    }
  }
}

// In forward. In backward, what is not saved may be gone.
TEST(ValidateCall, RefusesShapesWithoutMemory) {
  for (const OpDefinition& def : every_op()) {
    SCOPED_TRACE(def.name);
    Call call(def);
    call.forward_only();
    for (std::vector<Tensor>* tensors : {&call.in, &call.out})
      for (Tensor& tensor : *tensors)
        if (tensor) call.expect_refused("no memory", tensor, [](Tensor& t) { t.data = nullptr; });
  }
}

TEST(ValidateCall, RefusesTensorsThatOverlap) {
  for (const OpDefinition& def : every_op()) {
    SCOPED_TRACE(def.name);
    Call call(def);
    for (std::size_t i = 0; i < call.out.size(); ++i) {
      for (const Tensor& in : call.in) call.expect_refused_over("an output over an input", call.out[i], in);
      for (std::size_t j = 0; j < i; ++j)
        call.expect_refused_over("an output over an output", call.out[i], call.out[j]);
    }
    for (std::size_t i = 0; i < call.d_in.size(); ++i) {
      Tensor& gradient = call.d_in[i];
      if (!gradient) continue;
      for (std::size_t j = 0; j < call.in.size(); ++j)
        if (def.input_is(j, is::saved))
          call.expect_refused_over("a gradient over an input that backward reads", gradient, call.in[j]);
      for (std::size_t j = 0; j < call.out.size(); ++j)
        if (def.saves_output(j))
          call.expect_refused_over("a gradient over an output that backward reads", gradient, call.out[j]);
      for (const Tensor& d_out : call.d_out)
        if (!def.input_is(i, is::passes_gradient))
          call.expect_refused_over("a gradient over the gradient of an output", gradient, d_out);
      for (std::size_t j = 0; j < i; ++j)
        call.expect_refused_over("a gradient over another", gradient, call.d_in[j]);
    }
  }
}

// What is the output's gradient already may stay where it lies, all of it and nothing added.
TEST(ValidateCall, TakesAGradientThatIsPassedOn) {
  Call call(op::kAddScaled);
  ASSERT_TRUE(op::kAddScaled.input_is(0, is::passes_gradient));
  call.d_in[0] = call.d_out[0];
  EXPECT_EQ(call.refusal(), "");
  EXPECT_NE(call.refusal(/*add=*/1), "");
  call.expect_refused("part of it", call.d_in[0], [](Tensor& t) { t.data = t.row<double>(0) + 1; });
  call.d_in[1] = call.d_out[0];
  EXPECT_NE(call.refusal(), "") << "that of another input";
}

TEST(ValidateCall, RefusesGradientsThatDoNotFitOrAreNotThere) {
  for (const OpDefinition& def : every_op()) {
    SCOPED_TRACE(def.name);
    Call call(def);
    for (std::vector<Tensor>* gradients : {&call.d_in, &call.d_out})
      for (Tensor& gradient : *gradients) {
        if (!gradient) continue;
        call.expect_refused("a row short", gradient, row_short);
        call.expect_refused("a column too many", gradient, column_more);
        call.expect_refused("of another dtype", gradient, other_dtype);
      }
    const std::vector<Tensor> spare = Call(def).out;
    for (std::size_t i = 0; i < call.in.size(); ++i)
      if (call.in[i] && !def.input_is(i, is::differentiable))
        call.expect_refused("of an input that has none", call.d_in[i], [&](Tensor& t) {
          t = call.in[i];
          t.data = spare[0].data;
        });
  }
}

TEST(ValidateCall, RefusesMoreGradientsThanThereAreTensors) {
  for (const OpDefinition& def : every_op()) {
    SCOPED_TRACE(def.name);
    Call more_in(def), more_out(def), spare(def);
    more_in.d_in.resize(more_in.in.size() + 1, spare.out[0]);
    EXPECT_NE(more_in.refusal(), "") << "more gradients than inputs";
    more_out.d_out.resize(more_out.out.size() + 1, spare.out[0]);
    EXPECT_NE(more_out.refusal(), "") << "more gradients than outputs";
  }
}

}  // namespace
}  // namespace thimble
