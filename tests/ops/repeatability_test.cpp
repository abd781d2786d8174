#include "ops/op_harness.h"

namespace thimble {
namespace {

// In a new context, so that no state of an earlier call remains.
Results run_with_threads(const OpDefinition& def, const OpCase& op_case, const Conditions& cpu, int count) {
  const Threads threads(count);
  return run_op(def, op_case, cpu, Context());
}

TEST_P(EveryOp, HasTheSameBitsTwiceAndForAnyThreadCount) {
  for_stored_cases_too([&](const Conditions& cpu, const OpCase& op_case) {
    const Results one = run_with_threads(def(), op_case, cpu, 1);
    for (const int threads : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} threads", threads));
      const Results first =
          facts().bits_for_any_threads ? one : run_with_threads(def(), op_case, cpu, threads);
      expect_same_bits(first, run_with_threads(def(), op_case, cpu, threads));
    }
  });
}

}  // namespace
}  // namespace thimble
