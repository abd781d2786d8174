// Documents in one call do not influence each other, and cached attention matches attention over
// the complete sequence.
#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/attention.h"
#include "ops/fill.h"
#include "ops/op_harness.h"

namespace thimble {
namespace {

Values rows_of(const Values& values, std::int64_t begin, std::int64_t end) {
  const std::int64_t C = values.shape.cols;
  return {{end - begin, C, values.shape.dtype},
          {values.numbers.begin() + begin * C, values.numbers.begin() + end * C}};
}

// Document [begin, end) of an attention case, by itself.
OpCase document(const OpCase& op_case, std::int64_t begin, std::int64_t end) {
  OpCase alone = op_case;
  for (std::size_t i = 0; i < 3; ++i) alone.in[i] = rows_of(op_case.in[i], begin, end);
  alone.in[3] = column(Integers(static_cast<std::size_t>(end - begin), 0));
  alone.d_out[0] = rows_of(op_case.d_out[0], begin, end);
  alone.min_scale = 1;  // a document of one row has zero dq and dk, except for rounding
  return alone;
}

// The part of the results that belongs to rows [begin, end).
Results rows_of(const Results& whole, std::int64_t begin, std::int64_t end, std::int64_t count) {
  Results part = whole;
  for (Result& result : part) {
    const auto C = static_cast<std::int64_t>(result.numbers.size()) / count;
    result.numbers = {result.numbers.begin() + begin * C, result.numbers.begin() + end * C};
  }
  return part;
}

TEST(Attention, EachDocumentOfACallMatchesItselfAlone) {
  const OpDefinition& def = op::kAttention;
  for (const OpCase& op_case : cases_in(&op::kAttention, DType::f32)) {
    SCOPED_TRACE(op_case.name);
    const std::vector<double>& first = op_case.in[3].numbers;
    const auto N = static_cast<std::int64_t>(first.size());
    const Results whole = run_op(def, op_case, kCpu);
    for (std::int64_t begin = 0, end = 0; begin < N; begin = end) {
      while (end < N && first[static_cast<std::size_t>(end)] == static_cast<double>(begin)) ++end;
      SCOPED_TRACE(fmt::format("document of rows {} to {}", begin, end));
      const OpCase alone = document(op_case, begin, end);
      expect_close(def, alone, DType::f32, run_op(def, alone, kCpu), rows_of(whole, begin, end, N));
    }
  }
}

// All other documents keep the same bits.
TEST(Attention, ANanDoesNotReachOtherDocuments) {
  const OpDefinition& def = op::kAttention;
  for (OpCase op_case : cases_in(&op::kAttention, DType::f32)) {
    SCOPED_TRACE(op_case.name);
    const std::vector<double>& first = op_case.in[3].numbers;
    const auto N = static_cast<std::int64_t>(first.size());
    const Results before = run_op(def, op_case, kCpu);
    const std::int64_t row = N / 2;
    for (Values* planted : {&op_case.in[0], &op_case.in[1], &op_case.in[2], &op_case.d_out[0]}) {
      double& number = planted->numbers[static_cast<std::size_t>(row * planted->shape.cols)];
      const double was = std::exchange(number, std::nan(""));
      const Results after = run_op(def, op_case, kCpu);
      number = was;
      for (std::int64_t n = 0; n < N; ++n)
        if (first[static_cast<std::size_t>(n)] != first[static_cast<std::size_t>(row)]) {
          SCOPED_TRACE(fmt::format("NaN in row {}, result of row {}", row, n));
          expect_same_bits(rows_of(before, n, n + 1, N), rows_of(after, n, n + 1, N));
        }
    }
  }
}

// Feeds the rows of `whole` into one slot of a cache, `together` at a time; returns y of all rows.
std::vector<double> feed(const OpCase& whole, std::int64_t together, const Conditions& conditions = kCpu) {
  const auto at = whole.attributes.as<AttentionAttributes>();
  const std::int64_t N = whole.in[0].shape.rows, width = whole.in[1].shape.cols;
  const auto context = static_cast<std::int32_t>(N);
  const Values empty{{2 * N, width, DType::f32},
                     std::vector<double>(static_cast<std::size_t>(2 * N * width))};
  OpCase part;
  part.in.resize(7, empty);
  part.attributes =
      CachedAttentionAttributes{at.heads, at.kv_heads, context, at.scale, at.softcap, at.window};
  part.inference = true;
  std::vector<double> y;
  for (std::int64_t begin = 0; begin < N; begin += together) {
    const std::int64_t end = std::min(N, begin + together);
    Integers position;
    for (std::int64_t n = begin; n < end; ++n) position.push_back(static_cast<std::int32_t>(n));
    for (std::size_t i = 0; i < 3; ++i) part.in[i] = rows_of(whole.in[i], begin, end);
    part.in[3] = column(Integers(position.size(), 1));
    part.in[4] = column(position);
    const Results results = run_op(op::kCachedAttention, part, conditions);
    y.insert(y.end(), results[0].numbers.begin(), results[0].numbers.end());
    part.in[5].numbers = results[1].numbers;
    part.in[6].numbers = results[2].numbers;
  }
  return y;
}

TEST(CachedAttention, MatchesAttentionWhenFedByTokenOrByBlock) {
  const OpDefinition& def = op::kAttention;
  for (OpCase op_case : cases_in(&op::kAttention, DType::f32)) {
    SCOPED_TRACE(op_case.name);
    op_case.inference = true;
    const std::int64_t N = op_case.in[0].shape.rows;
    op_case.in[3] = column(Integers(static_cast<std::size_t>(N), 0));
    const Results whole = run_op(def, op_case, kCpu);
    const Results by_token = {{"output 0", feed(op_case, 1)}};
    expect_close(def, op_case, DType::f32, {whole[0]}, by_token);
    for (const std::int64_t together : {std::int64_t{3}, std::int64_t{16}, N})
      expect_same_bits(by_token, {{"output 0", feed(op_case, together)}});
  }
}

// One query with a few heads uses a different code path for a block of keys than many queries.
TEST(CachedAttention, InBf16ABlockHasTheSameBitsAsItsTokens) {
  struct Size {
    std::int64_t N, H, K, D;
    std::int32_t window = 0;
    float softcap = 0;
  };
  Fill fill(&op::kCachedAttention);
  for (const Size& s :
       {Size{150, 4, 2, 64}, Size{130, 5, 5, 32}, Size{70, 8, 1, 128}, Size{70, 6, 2, 96}, Size{70, 4, 1, 48},
        Size{66, 40, 1, 32}, Size{150, 4, 2, 64, 33}, Size{150, 8, 1, 32, 64}, Size{150, 4, 1, 48, 65, 2}}) {
    SCOPED_TRACE(
        fmt::format("N={} H={} K={} D={} window={} softcap={}", s.N, s.H, s.K, s.D, s.window, s.softcap));
    OpCase whole;
    whole.in = {fill.rows(s.N, s.H * s.D), fill.rows(s.N, s.K * s.D), fill.rows(s.N, s.K * s.D)};
    whole.attributes = AttentionAttributes{static_cast<std::int32_t>(s.H), static_cast<std::int32_t>(s.K),
                                           0.125f, s.softcap, s.window};
    const Results by_token = {{"output 0", feed(whole, 1, kCpuBf16)}};
    for (const std::int64_t together : {std::int64_t{2}, std::int64_t{17}, s.N})
      expect_same_bits(by_token, {{"output 0", feed(whole, together, kCpuBf16)}});
  }
}

}  // namespace
}  // namespace thimble
