// exp and tanh near overflow and underflow reach the correct limits on every instruction set.
#include <cmath>

#include "ops/elementwise.h"
#include "ops/head_loss.h"
#include "ops/instruction_set.h"
#include "ops/op_harness.h"

namespace thimble {
namespace {

Values both_signs(const std::vector<float>& sizes) {
  Values row{{1, static_cast<std::int64_t>(2 * sizes.size()), DType::f32}, {}};
  for (const float sign : {1.0f, -1.0f})
    for (const float size : sizes) row.numbers.push_back(static_cast<double>(sign * size));
  return row;
}

void expect_right_limits(Op op, const Values& x, const Attributes& attributes) {
  const OpDefinition& def = *op;
  OpCase op_case{"large numbers", {x}, attributes};
  op_case.inference = true;
  op_case.d_out = {{}};
  const std::vector<double> expected = run_op(def, op_case, kReference)[0].numbers;
  for (const CpuLevel level : cpu_levels()) {
    SCOPED_TRACE(cpu_level_name(level));
    const InstructionSet chosen(level);
    const std::vector<double> found = run_op(def, op_case, kCpu)[0].numbers;
    for (std::size_t i = 0; i < expected.size(); ++i)
      // gelu's reference rounds 1 + tanh to 1e-16 in f64; our sigmoid is never below 4e-39.
      EXPECT_NEAR(found[i], expected[i],
                  1e-6 * std::abs(expected[i]) + 1e-13 + 4e-39 * std::abs(x.numbers[i]))
          << "input " << x.numbers[i];
  }
}

TEST(LargeNumbers, SoftcapReachesTheCap) {
  const Values x = both_signs({0, 1e-30f, 1e-4f, 0.02f, 0.6f, 1, 3, 7.8f, 8, 20, 88, 1e3f, 1e30f});
  expect_right_limits(&op::kSoftcap, x, SoftcapAttributes{1});
}

TEST(LargeNumbers, GeluAndSwigluReachIdentityOrZero) {
  const std::vector<float> sizes = {0,  1e-30f, 1e-3f, 0.3f,  2,  5,   12,   40,
                                    86, 87.5f,  88,    88.6f, 89, 120, 1e4f, 1e30f};
  expect_right_limits(&op::kActivation, both_signs(sizes), ActivationAttributes{ActivationKind::gelu});
  Values halves = both_signs(sizes);  // the gates; followed by as many ones
  halves.shape.cols *= 2;
  halves.numbers.resize(2 * halves.numbers.size(), 1.0);
  expect_right_limits(&op::kActivation, halves, ActivationAttributes{ActivationKind::swiglu});
}

}  // namespace
}  // namespace thimble
