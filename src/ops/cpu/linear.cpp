#include "ops/linear.h"

#include "ops/cpu/bf16_rows.h"
#include "ops/cpu/bf16_tiles.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/linear.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE void put_one(float value, float* y) {
  *y = value;
}
HWY_INLINE void put_one(float value, bf16* y) {
  *y = to_bf16(value);
}

// R rows of x against 4 rows of w, both in T: every weight is loaded once for R rows. The sum of one output
// runs in the same order for any R, which is what makes a row's bits independent of its neighbours.
template <class T, int R>
HWY_INLINE void few_rows_times_four(const Linear& op, std::int64_t n, std::int64_t o, const float* bias) {
  V32 sum[R][4];
  for (auto& row : sum)
    for (V32& lane : row) lane = hn::Zero(F32());
  for_lanes(op.x.cols, [&](auto at) HWY_ATTR {
    V32 w[4];
    for (int j = 0; j < 4; ++j) w[j] = at.load(op.w.row<T>(o + j));
    for (int r = 0; r < R; ++r) {
      const V32 x = at.load(op.x.row<T>(n + r));
      for (int j = 0; j < 4; ++j) sum[r][j] = hn::MulAdd(x, w[j], sum[r][j]);
    }
  });
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < 4; ++j)
      put_one(sum_of_lanes(sum[r][j]) + (bias ? bias[o + j] : 0.0f), op.y.row<T>(n + r) + o + j);
}

template <class T, int R>
HWY_INLINE void few_rows(const Linear& op, std::int64_t n, std::int64_t begin, std::int64_t end) {
  const float* bias = op.b ? op.b.row<float>(0) : nullptr;
  std::int64_t o = begin;
  for (; o + 4 <= end; o += 4) few_rows_times_four<T, R>(op, n, o, bias);
  for (; o < end; ++o)
    for (int r = 0; r < R; ++r)
      put_one(dot(op.x.row<T>(n + r), op.w.row<T>(o), op.x.cols) + (bias ? bias[o] : 0.0f),
              op.y.row<T>(n + r) + o);
}

template <class T>
HWY_INLINE void all_rows(const Linear& op, std::int64_t begin, std::int64_t end) {
  std::int64_t n = 0;
  for (; n + 4 <= op.x.rows; n += 4) few_rows<T, 4>(op, n, begin, end);
  switch (op.x.rows - n) {
    case 3:
      return few_rows<T, 3>(op, n, begin, end);
    case 2:
      return few_rows<T, 2>(op, n, begin, end);
    case 1:
      return few_rows<T, 1>(op, n, begin, end);
    default:
      return;
  }
}

// Outputs [begin, end) of all rows.
void invariant_linear(const Linear& op, std::int64_t begin, std::int64_t end) {
  op.x.dtype == DType::bf16 ? all_rows<bf16>(op, begin, end) : all_rows<float>(op, begin, end);
}

void add_rows(const Tensor& dy, std::int64_t begin, std::int64_t end, float* sums) {
  for (std::int64_t n = begin; n < end; ++n) {
    const Row row(dy, n);
    for_lanes(dy.cols, [&](auto at) HWY_ATTR { at.store(hn::Add(at.load(sums), at.load(row)), sums); });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(invariant_linear);
HWY_EXPORT(add_rows);

void linear_forward(const Context& context, const OpCall& call) {
  const Linear op(call);
  if (!op.at.invariant) {
    context.state<Gemm>().run({op.x}, transposed(op.w), op.y, false, op.b);
    return;
  }
  constexpr std::int64_t kOutputsPerTask =
      64;  // a multiple of 4: an output is always computed by the same code
  const auto run = op.x.dtype == DType::bf16 && multiplies_bf16_pairs()
                       ? invariant_linear_bf16
                       : HWY_DYNAMIC_DISPATCH(invariant_linear);
  parallel_for(op.w.rows, kOutputsPerTask,
               [&](std::int64_t begin, std::int64_t end) { run(op, begin, end); });
}

void linear_backward(const Context& context, const OpCall& call) {
  const Linear op(call);
  Gemm& gemm = context.state<Gemm>();
  if (op.dx) gemm.run({op.dy}, {op.w}, op.dx, op.add_dx);
  if (op.dw) gemm.run(transposed(op.dy), {op.x}, op.dw, true);
  if (!op.db) return;
  sum_over_rows(
      op.dy.rows, op.dy.cols, call.scratch,
      [&](std::int64_t begin, std::int64_t end, float* sums) {
        HWY_DYNAMIC_DISPATCH(add_rows)(op.dy, begin, end, sums);
      },
      [&](const float* total) { add_total(total, op.dy.cols, op.db.row<float>(0), op.dy.cols); });
}

}  // namespace thimble::cpu
#endif
