#include "ops/head_loss.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/head_loss.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// Turns one row of logits z into capped logits l and returns the log of the sum of their exponentials.
HWY_INLINE float cap_and_log_sum_exp(float* z, std::int64_t count, float cap) {
  if (cap > 0) {
    const V32 up = all(cap), down = all(1 / cap);
    for_lanes(count,
              [&](auto at) HWY_ATTR { at.store(hn::Mul(up, tanh_lanes(hn::Mul(at.load(z), down))), z); });
  }
  V32 highest = all(-std::numeric_limits<float>::infinity());
  for_lanes(count, [&](auto at) HWY_ATTR {
    highest = hn::Max(highest, at.or_else(at.load(z), -std::numeric_limits<float>::infinity()));
  });
  const float top = max_of_lanes(highest);
  const float sum = sum_lanes(
      count, [&](auto at) HWY_ATTR { return at.or_zero(exp_lanes(hn::Sub(at.load(z), all(top)))); });
  return top + std::log(sum);
}

// Rows of one chunk: logits in, nats out; with gradients, the logits become dz.
void head_loss_rows(const HeadLoss& op, const Tensor& logits, std::int64_t chunk, std::int64_t begin,
                    std::int64_t end, bool gradients) {
  const std::int64_t V = logits.cols;
  const float inverse_cap = op.at.cap > 0 ? 1 / op.at.cap : 0.0f;
  for (std::int64_t r = begin; r < end; ++r) {
    float* z = logits.row<float>(r);
    const std::int32_t target = *op.target.row<std::int32_t>(chunk + r);
    if (target < 0) {
      *op.nats.row<float>(chunk + r) = 0;
      if (gradients) std::fill_n(z, V, 0.0f);
      continue;
    }
    const float lse = cap_and_log_sum_exp(z, V, op.at.cap);
    const float at_target = z[target];
    *op.nats.row<float>(chunk + r) = lse - at_target;
    if (!gradients) continue;
    const V32 weight = all(*op.weight.row<float>(chunk + r)), shift = all(lse), down = all(inverse_cap);
    const auto slope = [&](V32 l) HWY_ATTR {
      const V32 t = hn::Mul(l, down);
      return hn::Mul(weight, hn::Sub(all(1), hn::Mul(t, t)));
    };
    for_lanes(V, [&](auto at) HWY_ATTR {
      const V32 l = at.load(z);
      at.store(hn::Mul(slope(l), exp_lanes(hn::Sub(l, shift))), z);
    });
    z[target] -= hn::GetLane(slope(all(at_target)));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(head_loss_rows);

namespace {

void run_head_loss(const Context& context, const HeadLoss& op, bool gradients) {
  Gemm& gemm = context.state<Gemm>();
  for (std::int64_t chunk = 0; chunk < op.x.rows; chunk += op.at.chunk_rows) {
    const std::int64_t rows = std::min<std::int64_t>(op.at.chunk_rows, op.x.rows - chunk);
    const Tensor x = op.x.row_range(chunk, rows);
    const Tensor logits = make_tensor(static_cast<float*>(op.scratch.data), rows, op.w.rows);
    gemm.run({x}, transposed(op.w), logits, false);
    parallel_for(rows, rows_per_task(op.w.rows), [&](std::int64_t begin, std::int64_t end) {
      HWY_DYNAMIC_DISPATCH(head_loss_rows)(op, logits, chunk, begin, end, gradients);
    });
    if (!gradients) continue;
    if (op.dx) gemm.run({logits}, {op.w}, op.dx.row_range(chunk, rows), op.add_dx);
    if (op.dw) gemm.run(transposed(logits), {x}, op.dw, true);
  }
}

}  // namespace

void head_loss_forward(const Context& context, const OpCall& call) {
  run_head_loss(context, HeadLoss(call), false);
}

void head_loss_backward(const Context& context, const OpCall& call) {
  run_head_loss(context, HeadLoss(call), true);
}

}  // namespace thimble::cpu
#endif
