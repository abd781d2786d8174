#include "ops/smear.h"

#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/smear.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

void smear_rows(const Smear& op, std::int64_t begin, std::int64_t end) {
  const float* gate = op.gate.row<float>(0);
  for (std::int64_t n = begin; n < end; ++n) {
    const std::int32_t before = *op.previous.row<std::int32_t>(n);
    const float* x = op.x.row<float>(n);
    const float* previous = before < 0 ? nullptr : op.x.row<float>(before);
    for_lanes(op.y.cols, [&](auto at) HWY_ATTR {
      const V32 g = sigmoid_lanes(at.load(gate));
      const V32 kept = hn::Mul(hn::Sub(all(1), g), at.load(x));
      at.store(previous ? hn::MulAdd(g, at.load(previous), kept) : kept, op.y.row<float>(n));
    });
  }
}

void smear_backward_rows(const Smear& op, std::int64_t begin, std::int64_t end, float* dgate) {
  const std::int64_t N = op.dy.rows;
  const float* gate = op.gate.row<float>(0);
  for (std::int64_t n = begin; n < end; ++n) {
    const std::int32_t before = *op.previous.row<std::int32_t>(n);
    const float* x = op.x.row<float>(n);
    const float* dy = op.dy.row<float>(n);
    const float* previous = before < 0 ? nullptr : op.x.row<float>(before);
    const bool followed = n + 1 < N && *op.previous.row<std::int32_t>(n + 1) == n;
    const float* next_dy = followed ? op.dy.row<float>(n + 1) : nullptr;
    for_lanes(op.dy.cols, [&](auto at) HWY_ATTR {
      const V32 g = sigmoid_lanes(at.load(gate));
      const V32 one_less = hn::Sub(all(1), g);
      if (dgate) {
        const V32 difference = hn::Sub(previous ? at.load(previous) : hn::Zero(F32()), at.load(x));
        const V32 slope = hn::Mul(hn::Mul(g, one_less), hn::Mul(at.load(dy), difference));
        at.store(hn::Add(at.load(dgate), slope), dgate);
      }
      if (op.dx) {
        const V32 own = hn::Mul(one_less, at.load(dy));
        put(at, next_dy ? hn::MulAdd(g, at.load(next_dy), own) : own, op.dx.row<float>(n), op.add_dx);
      }
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(smear_rows);
HWY_EXPORT(smear_backward_rows);

void smear_forward(const Context&, const OpCall& call) {
  const Smear op(call);
  parallel_for(op.y.rows, rows_per_task(op.y.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(smear_rows)(op, begin, end);
  });
}

void smear_backward(const Context&, const OpCall& call) {
  const Smear op(call);
  const std::int64_t width = op.dgate ? op.dy.cols : 0;
  sum_over_rows(
      op.dy.rows, width, call.scratch,
      [&](std::int64_t begin, std::int64_t end, float* dgate) {
        HWY_DYNAMIC_DISPATCH(smear_backward_rows)(op, begin, end, dgate);
      },
      [&](const float* total) { add_total(total, width, op.dgate.row<float>(0), width); });
}

}  // namespace thimble::cpu
#endif
