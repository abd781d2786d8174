#include "ops/embedding.h"

#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/smear.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

void fill_gate(const Smear& op, float* g) {
  const float* gate = op.gate.row<float>(0);
  for_lanes(op.gate.cols, [&](auto at) HWY_ATTR { at.store(sigmoid_lanes(at.load(gate)), g); });
}

void smear_rows(const Smear& op, const float* g, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const std::int32_t before = *op.previous.row<std::int32_t>(n);
    with_rows({Row(op.x, n), before < 0 ? Row() : Row(op.x, before), Row(op.y, n)},
              [&](auto x, auto previous, auto y) HWY_ATTR {
                for_lanes(op.y.cols, [&](auto at) HWY_ATTR {
                  const V32 kept = hn::Mul(hn::Sub(all(1), at.load(g)), at.load(x));
                  at.store(previous ? hn::MulAdd(at.load(g), at.load(previous), kept) : kept, y);
                });
              });
  }
}

void smear_backward_rows(const Smear& op, const float* g, std::int64_t begin, std::int64_t end,
                         float* dgate) {
  const std::int64_t N = op.dy.rows;
  for (std::int64_t n = begin; n < end; ++n) {
    const std::int32_t before = *op.previous.row<std::int32_t>(n);
    const bool followed = n + 1 < N && *op.previous.row<std::int32_t>(n + 1) == n;
    with_rows({Row(op.x, n), before < 0 ? Row() : Row(op.x, before), Row(op.dy, n),
               followed ? Row(op.dy, n + 1) : Row(), Row(op.dx, n)},
              [&](auto x, auto previous, auto dy, auto next_dy, auto dx) HWY_ATTR {
                for_lanes(op.dy.cols, [&](auto at) HWY_ATTR {
                  const V32 share = at.load(g), one_less = hn::Sub(all(1), share), gradient = at.load(dy);
                  if (dgate) {
                    const V32 difference =
                        hn::Sub(previous ? at.load(previous) : hn::Zero(F32()), at.load(x));
                    const V32 slope = hn::Mul(hn::Mul(share, one_less), hn::Mul(gradient, difference));
                    at.store(hn::Add(at.load(dgate), slope), dgate);
                  }
                  if (dx) {
                    const V32 own = hn::Mul(one_less, gradient);
                    put(at, next_dy ? hn::MulAdd(share, at.load(next_dy), own) : own, dx, op.add_dx);
                  }
                });
              });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(fill_gate);
HWY_EXPORT(smear_rows);
HWY_EXPORT(smear_backward_rows);

// The scratch: sigmoid(gate), computed once, then the sums over rows.
void smear_forward(const Context&, const OpCall& call) {
  const Smear op(call);
  float* g = static_cast<float*>(call.scratch.data);
  HWY_DYNAMIC_DISPATCH(fill_gate)(op, g);
  parallel_for(op.y.rows, rows_per_task(op.y.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(smear_rows)(op, g, begin, end);
  });
}

void smear_backward(const Context&, const OpCall& call) {
  const Smear op(call);
  float* g = static_cast<float*>(call.scratch.data);
  HWY_DYNAMIC_DISPATCH(fill_gate)(op, g);
  const std::int64_t width = op.dgate ? op.dy.cols : 0, used = row_bytes(op.dy.cols);
  sum_over_rows(
      op.dy.rows, width, call.scratch.columns(used, call.scratch.cols - used),
      [&](std::int64_t begin, std::int64_t end, float* dgate) {
        HWY_DYNAMIC_DISPATCH(smear_backward_rows)(op, g, begin, end, dgate);
      },
      [&](const float* total) { add_total(total, width, op.dgate.row<float>(0), width); });
}

}  // namespace thimble::cpu
#endif
