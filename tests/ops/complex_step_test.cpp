// Backward of the reference is the derivative of its forward.
#include <complex>

#include "ops/cast.h"
#include "ops/op_harness.h"
#include "ops/tolerances.h"

namespace thimble {
namespace {

constexpr double kStep = 1e-30;

// dL/dx for L = sum of weight * output and every element x of input i: Im L(x + ih) / h.
class ComplexStep {
 public:
  ComplexStep(const OpDefinition& def, const OpFacts& facts, const OpCase& op_case)
      : op_(def, op_case, {.dtype = DType::c128}) {
    for (std::size_t o = 0; o < op_.out.size(); ++o)
      weights_.push_back(def.loss ? op_case.in[static_cast<std::size_t>(facts.loss_weight)]
                                  : op_case.d_out[o]);
  }

  std::vector<double> gradient(std::size_t i) {
    std::vector<double> gradient;
    const Tensor& x = op_.in[i].tensor();
    for (std::int64_t r = 0; r < x.rows; ++r)
      for (std::int64_t c = 0; c < x.cols; ++c) {
        std::complex<double>& element = x.row<std::complex<double>>(r)[c];
        const std::complex<double> before = element;
        element += std::complex<double>(0, kStep);
        op_.forward(context_);
        element = before;
        gradient.push_back(loss_step() / kStep);
      }
    return gradient;
  }

 private:
  double loss_step() const {
    double sum = 0;
    for (std::size_t o = 0; o < op_.out.size(); ++o) {
      if (!weights_[o]) continue;
      const std::vector<double> step = op_.out[o].read_imaginary();
      for (std::size_t e = 0; e < step.size(); ++e) sum += weights_[o].numbers[e] * step[e];
    }
    return sum;
  }

  Context context_;
  BoundOp op_;
  std::vector<Values> weights_;
};

// Rounding is straight through: its derivative is defined to be one.
std::vector<double> derivative(const OpDefinition& def, const OpFacts& facts, const OpCase& op_case,
                               std::size_t i) {
  if (&def == &op::kFakeQuant || &def == &op::kCast) return op_case.d_out[i].numbers;
  return ComplexStep(def, facts, op_case).gradient(i);
}

TEST_P(EveryOp, ReferenceGradientMatchesComplexStep) {
  for (const OpCase& op_case : cases_in(GetParam(), DType::f32)) {
    if (op_case.large || !has_backward(def(), op_case)) continue;
    SCOPED_TRACE(op_case.name);
    BoundOp reference(def(), op_case, kReference);
    const Context context;
    reference.forward(context);
    reference.backward(context);
    for (std::size_t i = 0; i < op_case.in.size(); ++i) {
      if (!op_case.in[i] || !def().input_is(i, is::differentiable)) continue;
      SCOPED_TRACE(fmt::format("input {}", i));
      const std::vector<double> expected = derivative(def(), facts(), op_case, i);
      EXPECT_LE(error_of(expected, reference.d_in[i].read(), op_case.min_scale), kComplexStepTolerance);
    }
  }
}

}  // namespace
}  // namespace thimble
