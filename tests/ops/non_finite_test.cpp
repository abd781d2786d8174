// NaN and infinity propagate exactly where the formula propagates them.
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "ops/op_harness.h"

namespace thimble {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool all_finite(const Results& results) {
  for (const Result& result : results)
    for (double number : result.numbers)
      if (!std::isfinite(number)) return false;
  return true;
}

// Every element that is not finite in the reference must not be finite here. For a NaN, no other
// element may be affected, unless the op spreads it. For an infinity, no element may be affected if
// the reference is all finite (f32 may compute inf - inf where f64 does not).
void expect_same_visibility(const OpDefinition& def, const Results& reference, const Results& cpu,
                            double planted) {
  ASSERT_EQ(reference.size(), cpu.size());
  const bool exactly = !op_facts(&def).spreads_nan && (std::isnan(planted) || all_finite(reference));
  for (std::size_t r = 0; r < reference.size(); ++r)
    for (std::size_t e = 0; e < reference[r].numbers.size(); ++e) {
      const bool expected = !std::isfinite(reference[r].numbers[e]),
                 found = !std::isfinite(cpu[r].numbers[e]);
      ASSERT_TRUE(found || !expected)
          << reference[r].name << ", element " << e << ": " << planted << " became " << cpu[r].numbers[e]
          << ", the reference is " << reference[r].numbers[e];
      ASSERT_TRUE(!exactly || expected || !found) << reference[r].name << ", element " << e << ": " << planted
                                                  << " leaked, the reference is " << reference[r].numbers[e];
    }
}

// Runs with a non-finite value as the first, a middle and the last element of one tensor.
void plant_in(const OpDefinition& def, const Conditions& cpu, OpCase& op_case, Values& tensor) {
  const std::size_t count = tensor.numbers.size();
  for (const std::size_t element : std::set{std::size_t{0}, count / 2, count - 1})
    for (const double planted : {kNaN, kInfinity, -kInfinity}) {
      if ((op_case.large || !std::isnan(planted)) && element != count / 2) continue;
      SCOPED_TRACE(fmt::format("{} at element {}", planted, element));
      const double before = std::exchange(tensor.numbers[element], planted);
      expect_same_visibility(def, run_op(def, op_case, kReference), run_op(def, op_case, cpu), planted);
      tensor.numbers[element] = before;
    }
}

TEST_P(EveryOp, NanAndInfinityPropagate) {
  for_cpu_cases([&](const Conditions& cpu, OpCase op_case) {
    for (std::size_t i = 0; i < op_case.in.size(); ++i) {
      SCOPED_TRACE(fmt::format("input {}", i));
      if (op_case.in[i] && !op_case.in[i].integers()) plant_in(def(), cpu, op_case, op_case.in[i]);
    }
    for (std::size_t i = 0; i < op_case.d_out.size(); ++i) {
      SCOPED_TRACE(fmt::format("gradient of output {}", i));
      if (op_case.d_out[i]) plant_in(def(), cpu, op_case, op_case.d_out[i]);
    }
  });
}

}  // namespace
}  // namespace thimble
