// Batch invariance: a row has the same bits whatever other rows share the call.
#include <algorithm>
#include <numeric>

#include "ops/instruction_set.h"
#include "ops/op_harness.h"

namespace thimble {
namespace {

using Rows = std::vector<std::int64_t>;

Values take(const Values& values, const Rows& rows) {
  Values taken{{static_cast<std::int64_t>(rows.size()), values.shape.cols, values.shape.dtype}, {}};
  for (const std::int64_t row : rows)
    taken.numbers.insert(taken.numbers.end(), values.numbers.begin() + row * values.shape.cols,
                         values.numbers.begin() + (row + 1) * values.shape.cols);
  return taken;
}

// The case restricted to `rows`. `state` replaces the caches, which earlier calls have written.
OpCase with_rows(const OpDefinition& def, const OpCase& op_case, const Rows& rows, const Results& state) {
  OpCase part = op_case;
  for (std::size_t i = 0; i < part.in.size(); ++i)
    if (has_bit(op_facts(&def).by_row, i)) part.in[i] = take(op_case.in[i], rows);
  for (const Result& cache : state)
    for (std::size_t i = 0; i < part.in.size(); ++i)
      if (cache.name == fmt::format("state {}", i)) part.in[i].numbers = cache.numbers;
  if (&def != &op::kSmear) return part;

  // Decoding: x has the current rows, then those of the previous tokens (see `previous`).
  const std::int64_t N = op_case.in[2].shape.rows;
  Rows current_then_before = rows;
  for (std::int64_t row = N; row < op_case.in[0].shape.rows; ++row) current_then_before.push_back(row);
  part.in[0] = take(op_case.in[0], current_then_before);
  for (double& row : part.in[2].numbers)
    if (row >= 0) row += static_cast<double>(rows.size()) - static_cast<double>(N);
  return part;
}

// Runs the op on `together` rows at a time and concatenates its outputs.
Results run_in_parts(const OpDefinition& def, const OpCase& op_case, const Conditions& cpu,
                     std::int64_t count, std::int64_t together) {
  Results whole;
  Results state;
  for (std::int64_t begin = 0; begin < count; begin += together) {
    Rows rows(static_cast<std::size_t>(std::min(together, count - begin)));
    std::iota(rows.begin(), rows.end(), begin);
    const OpCase part = with_rows(def, op_case, rows, state);
    BoundOp op(def, part, cpu);
    op.forward(Context());
    op.d_in.clear();
    state = written(def, op);
    if (begin == 0) {
      whole = state;
      continue;
    }
    for (std::size_t r = 0; r < whole.size(); ++r)
      if (state[r].name.starts_with("state"))
        whole[r] = state[r];
      else
        whole[r].numbers.insert(whole[r].numbers.end(), state[r].numbers.begin(), state[r].numbers.end());
  }
  return whole;
}

// Ops with a separate inference form are batch-invariant in that form; other ops always.
bool is_batch_invariant(Op op, const OpCase& op_case) {
  const bool has_own_form =
      std::ranges::any_of(cases_in(op, DType::f32), [](const OpCase& c) { return c.inference; });
  return op_case.inference || !has_own_form;
}

class InferenceOps : public EveryOp {};

TEST_P(InferenceOps, ARowHasTheSameBitsWhateverSharesTheCall) {
  for_stored_cases_too([&](const Conditions& cpu, const OpCase& op_case) {
    if (!is_batch_invariant(GetParam(), op_case)) return;
    for (const CpuLevel level : cpu_levels()) {
      const InstructionSet chosen(level);
      const std::int64_t count = BoundOp(def(), op_case, cpu).out[0].tensor().rows;
      const Results all = run_in_parts(def(), op_case, cpu, count, count);
      for (const std::int64_t together : {1, 2, 7}) {
        SCOPED_TRACE(fmt::format("{} rows per call, {}", together, cpu_level_name(level)));
        expect_same_bits(all, run_in_parts(def(), op_case, cpu, count, together));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(, InferenceOps, ::testing::ValuesIn([] {
                           std::vector<Op> ops;
                           for (const OpDefinition& def : every_op())
                             if (op_facts(&def).by_row) ops.push_back(&def);
                           return ops;
                         }()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace thimble
