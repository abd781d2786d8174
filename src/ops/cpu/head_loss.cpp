#include "ops/head_loss.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"
#include "ops/cpu/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/head_loss.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// One row on its way to the loss: where the logits were stand the weights e^(l - shift) of the capped logits l,
// each times the slope of its cap, as dz wants them.
struct RowSoftmax {
  float shift, sum;

  float log_sum_exp() const { return shift + std::log(sum); }
};

HWY_INLINE V32 slope_of_tanh(V32 t) {
  return hn::NegMulAdd(t, t, all(1));
}

HWY_INLINE RowSoftmax softmax(float* z, std::int64_t count, float cap) {
  const float lowest = -std::numeric_limits<float>::infinity();
  V32 highest = all(lowest);
  for_lanes(count, [&](auto at) HWY_ATTR { highest = hn::Max(highest, at.or_else(at.load(z), lowest)); });
  highest = all(max_of_lanes(highest));
  if (cap == 0) {
    const float sum = sum_lanes(count, [&](auto at) HWY_ATTR {
      const V32 weight = at.or_zero(exp_lanes(hn::Sub(at.load(z), highest)));
      at.store(weight, z);
      return weight;
    });
    return {hn::GetLane(highest), sum};
  }
  const V32 up = all(cap), down = all(1 / cap);
  const V32 shift = hn::Mul(up, tanh_lanes(hn::Mul(highest, down)));  // tanh keeps the order
  const float sum = sum_lanes(count, [&](auto at) HWY_ATTR {
    const V32 t = tanh_lanes(hn::Mul(at.load(z), down));
    const V32 weight = at.or_zero(exp_lanes(hn::Sub(hn::Mul(up, t), shift)));
    at.store(hn::Mul(weight, slope_of_tanh(t)), z);
    return weight;
  });
  return {hn::GetLane(shift), sum};
}

// Rows of one chunk: logits in, nats out; with gradients, dz takes the place of the logits, in f32 or bf16.
void head_loss_rows(const HeadLoss& op, const Tensor& logits, const Tensor& dz, std::int64_t chunk,
                    std::int64_t begin, std::int64_t end, bool gradients) {
  const std::int64_t V = logits.cols;
  const float cap = op.at.cap;
  for (std::int64_t r = begin; r < end; ++r) {
    float* z = logits.row<float>(r);
    const Row out(dz, r);
    const std::int32_t target = *op.target.row<std::int32_t>(chunk + r);
    if (target < 0) {
      *op.nats.row<float>(chunk + r) = 0;
      if (gradients) for_lanes(V, [&](auto at) HWY_ATTR { at.store(all(0), out); });
      continue;
    }
    const V32 t = cap > 0 ? tanh_lanes(all(z[target] / cap)) : all(0);
    const float at_target = cap > 0 ? cap * hn::GetLane(t) : z[target];
    const RowSoftmax row = softmax(z, V, cap);
    *op.nats.row<float>(chunk + r) = row.log_sum_exp() - at_target;
    if (!gradients) continue;
    const float weight = *op.weight.row<float>(chunk + r), factor = weight / row.sum;
    const V32 of_target = hn::MulSub(all(factor), all(z[target]), hn::Mul(all(weight), slope_of_tanh(t)));
    // A narrower dz grows into memory that was read before.
    for_lanes(V, [&](auto at) HWY_ATTR { at.store(hn::Mul(all(factor), at.load(z)), out); });
    PartOfVector{0, 1}.store(of_target, out + target);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(head_loss_rows);

namespace {

// Logits and the loss are f32; dz has the dtype of x, so that the products of backward are like those of linear.
Tensor dz_in_place_of(const Tensor& logits, DType dtype) {
  Tensor dz = logits;
  dz.dtype = dtype;
  dz.stride *= dtype_bytes(logits.dtype) / dtype_bytes(dtype);
  return dz;
}

void run_head_loss(const Context& context, const HeadLoss& op, bool gradients) {
  Gemm& gemm = context.state<Gemm>();
  const Tensor w = unpacked(context, op.w, op.scales, op.x.dtype);
  for (std::int64_t chunk = 0; chunk < op.x.rows; chunk += op.at.chunk_rows) {
    const std::int64_t rows = std::min<std::int64_t>(op.at.chunk_rows, op.x.rows - chunk);
    const Tensor x = op.x.row_range(chunk, rows);
    const Tensor logits = make_tensor(static_cast<float*>(op.scratch.data), rows, op.w.rows);
    const Tensor dz = dz_in_place_of(logits, op.x.dtype);
    gemm.run({x}, transposed(w), logits, false);
    parallel_for(rows, rows_per_task(op.w.rows), [&](std::int64_t begin, std::int64_t end) {
      HWY_DYNAMIC_DISPATCH(head_loss_rows)(op, logits, dz, chunk, begin, end, gradients);
    });
    if (!gradients) continue;
    if (op.dx) gemm.run({dz}, {w}, op.dx.row_range(chunk, rows), op.add_dx);
    if (op.dw) gemm.run(transposed(dz), {x}, op.dw, true);
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
