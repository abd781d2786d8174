// head_loss: for each chunk of rows, the product with w, the loss, its gradient, and the products
// of backward. softcap: capped logits that are returned.
#include "ops/head_loss.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/gemm.h"
#include "ops/cpu/linear.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/head_loss.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// The softmax of one row. The logits are replaced by the weights e^(l - shift) of the capped logits
// l, each multiplied by the slope of the cap, as dz needs them.
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
  const V32 shift = hn::Mul(up, tanh_lanes(hn::Mul(highest, down)));  // tanh is monotonic
  const float sum = sum_lanes(count, [&](auto at) HWY_ATTR {
    const V32 t = tanh_lanes(hn::Mul(at.load(z), down));
    const V32 weight = at.or_zero(exp_lanes(hn::Sub(hn::Mul(up, t), shift)));
    at.store(hn::Mul(weight, slope_of_tanh(t)), z);
    return weight;
  });
  return {hn::GetLane(shift), sum};
}

// Rows of one chunk: computes nats; with gradients, dz (f32 or bf16) overwrites the logits.
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
    // In place: a bf16 dz is written only to memory that was already read.
    for_lanes(V, [&](auto at) HWY_ATTR { at.store(hn::Mul(all(factor), at.load(z)), out); });
    PartOfVector{0, 1}.store(of_target, out + target);
  }
}

// to = from, or to += from.
void round_rows(const Tensor& from, const Tensor& to, bool add, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(from, n), Row(to, n)}, [&](auto f, auto t) HWY_ATTR {
      for_lanes(from.cols, [&](auto at) HWY_ATTR { put(at, at.load(f), t, add); });
    });
}

void softcap_rows(const Softcap& op, std::int64_t begin, std::int64_t end) {
  const V32 cap = all(op.cap), inverse = all(1 / op.cap);
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n), Row(op.y, n)}, [&](auto x, auto y) HWY_ATTR {
      for_lanes(op.x.cols, [&](auto at) HWY_ATTR {
        at.store(hn::Mul(cap, tanh_lanes(hn::Mul(at.load(x), inverse))), y);
      });
    });
}

void softcap_backward_rows(const Softcap& op, std::int64_t begin, std::int64_t end) {
  const V32 inverse = all(1 / op.cap);
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.y, n), Row(op.dy, n), Row(op.dx, n)}, [&](auto y, auto dy, auto dx) HWY_ATTR {
      for_lanes(op.dy.cols, [&](auto at) HWY_ATTR {
        const V32 t = hn::Mul(at.load(y), inverse);
        put(at, hn::Mul(at.load(dy), hn::Sub(all(1), hn::Mul(t, t))), dx, op.add_dx);
      });
    });
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(head_loss_rows);
HWY_EXPORT(round_rows);
HWY_EXPORT(softcap_rows);
HWY_EXPORT(softcap_backward_rows);

namespace {

// Logits and the loss are f32. dz has the dtype of x, so that its products match those of linear.
Tensor dz_in_place_of(const Tensor& logits, DType dtype) {
  Tensor dz = logits;
  dz.dtype = dtype;
  dz.stride *= dtype_bytes(logits.dtype) / dtype_bytes(dtype);
  return dz;
}

// A stored w is unpacked in panels of about this size. With several panels, dx is summed in f32.
constexpr std::int64_t kPanelBytes = std::int64_t{16} << 20;

std::int64_t panel_rows(const Shape& w, DType dtype) {
  if (w.dtype == dtype) return w.rows;
  return std::clamp<std::int64_t>(kPanelBytes / (w.cols * dtype_bytes(dtype)), 1, w.rows);
}

std::int64_t logits_bytes(std::int64_t rows, std::int64_t vocabulary) {
  return align_up(rows * vocabulary * static_cast<std::int64_t>(sizeof(float)), kAlignment);
}

// Calls product(first row, panel) for all panels of w.
template <class Product>
void for_panels(const Context& context, const HeadLoss& op, Product product) {
  const std::int64_t each = panel_rows(op.w.shape(), op.x.dtype);
  for (std::int64_t first = 0; first < op.w.rows; first += each)
    product(first,
            unpacked_rows(context, op.w, op.scales, first, std::min(each, op.w.rows - first), op.x.dtype));
}

// dx = dz w for one chunk.
void head_loss_dx(const Context& context, const HeadLoss& op, const Tensor& dz, const Tensor& dx) {
  Gemm& gemm = context.state<Gemm>();
  if (panel_rows(op.w.shape(), op.x.dtype) == op.w.rows || dx.dtype == DType::f32) {
    for_panels(context, op, [&](std::int64_t first, const Tensor& w) {
      gemm.run({dz.columns(first, w.rows)}, {w}, dx, op.add_dx || first > 0);
    });
    return;
  }
  auto* const memory = static_cast<std::byte*>(op.scratch.data) + logits_bytes(dz.rows, op.w.rows);
  const Tensor sum = make_tensor(reinterpret_cast<float*>(memory), dx.rows, dx.cols);
  for_panels(context, op, [&](std::int64_t first, const Tensor& w) {
    gemm.run({dz.columns(first, w.rows)}, {w}, sum, first > 0);
  });
  parallel_for(dx.rows, rows_per_task(dx.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(round_rows)(sum, dx, op.add_dx, begin, end);
  });
}

void run_head_loss(const Context& context, const HeadLoss& op, bool gradients) {
  Gemm& gemm = context.state<Gemm>();
  for (std::int64_t chunk = 0; chunk < op.x.rows; chunk += op.at.chunk_rows) {
    const std::int64_t rows = std::min<std::int64_t>(op.at.chunk_rows, op.x.rows - chunk);
    const Tensor x = op.x.row_range(chunk, rows);
    const Tensor logits = make_tensor(static_cast<float*>(op.scratch.data), rows, op.w.rows);
    const Tensor dz = dz_in_place_of(logits, op.x.dtype);
    for_panels(context, op, [&](std::int64_t first, const Tensor& w) {
      gemm.run({x}, transposed(w), logits.columns(first, w.rows), false);
    });
    parallel_for(rows, rows_per_task(op.w.rows), [&](std::int64_t begin, std::int64_t end) {
      HWY_DYNAMIC_DISPATCH(head_loss_rows)(op, logits, dz, chunk, begin, end, gradients);
    });
    if (!gradients) continue;
    if (op.dx) head_loss_dx(context, op, dz, op.dx.row_range(chunk, rows));
    if (op.dw) gemm.run(transposed(dz), {x}, op.dw, true);
  }
}

void head_loss_forward(const Context& context, const OpCall& call) {
  run_head_loss(context, HeadLoss(call), false);
}

void head_loss_backward(const Context& context, const OpCall& call) {
  run_head_loss(context, HeadLoss(call), true);
}

void softcap_forward(const Context&, const OpCall& call) {
  const Softcap op(call);
  parallel_for(op.x.rows, rows_per_task(op.x.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(softcap_rows)(op, begin, end);
  });
}

void softcap_backward(const Context&, const OpCall& call) {
  const Softcap op(call);
  parallel_for(op.dy.rows, rows_per_task(op.dy.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(softcap_backward_rows)(op, begin, end);
  });
}

std::int64_t head_loss_scratch_bytes(std::span<const Shape> in, const Attributes& attributes) {
  const std::int64_t N = in[0].rows;
  const std::int64_t rows = std::min<std::int64_t>(attributes.as<HeadLossAttributes>().chunk_rows, N);
  const bool panels = panel_rows(in[1], in[0].dtype) < in[1].rows;
  return logits_bytes(rows, in[1].rows) + (panels ? logits_bytes(rows, in[0].cols) : 0);
}

}  // namespace

constinit const Kernels kHeadLoss = {.forward = head_loss_forward,
                                     .backward = head_loss_backward,
                                     .rows = dtypes({DType::f32, DType::bf16}),
                                     .stored = kStoredDTypes,
                                     .scratch_bytes = head_loss_scratch_bytes};
constinit const Kernels kSoftcap = {.forward = softcap_forward,
                                    .backward = softcap_backward,
                                    .rows = dtypes({DType::f32, DType::bf16}),
                                    .wide_gradients = true};

}  // namespace thimble::cpu
#endif
