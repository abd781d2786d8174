#include "ops/rope.h"

#include <cmath>

#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rope.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// One head of one row.
struct Head {
  std::int64_t size, half;       // D, R/2
  const float *cosines, *sines;  // of the row's position
  const float* w;                // [D] or nullptr
};

// Multiplies by the lanes of w, if there is a w.
template <class At>
HWY_INLINE V32 weighted(At at, V32 value, const float* w) {
  return w ? hn::Mul(value, at.load(w)) : value;
}

HWY_INLINE const float* columns_from(const float* w, std::int64_t columns) {
  return w ? w + columns : nullptr;
}

// y = rotated(x * factor * w)
template <class X, class Y>
HWY_INLINE void rotate_head(const Head& head, X x, float factor, Y y) {
  const V32 f = all(factor);
  const std::int64_t half = head.half, rest = 2 * half;
  const X x_half = x + half, x_rest = x + rest;
  const Y y_half = y + half, y_rest = y + rest;
  for_lanes(half, [&](auto at) HWY_ATTR {
    const V32 a = weighted(at, hn::Mul(at.load(x), f), head.w);
    const V32 b = weighted(at, hn::Mul(at.load(x_half), f), columns_from(head.w, half));
    const V32 c = at.load(head.cosines), s = at.load(head.sines);
    at.store(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), y);
    at.store(hn::MulAdd(a, s, hn::Mul(b, c)), y_half);
  });
  for_lanes(head.size - rest, [&](auto at) HWY_ATTR {
    at.store(weighted(at, hn::Mul(at.load(x_rest), f), columns_from(head.w, rest)), y_rest);
  });
}

// u = dy rotated back
template <class Y>
HWY_INLINE void rotate_back(const Head& head, Y dy, float* u) {
  const std::int64_t half = head.half, rest = 2 * half;
  const Y dy_half = dy + half, dy_rest = dy + rest;
  for_lanes(half, [&](auto at) HWY_ATTR {
    const V32 a = at.load(dy), b = at.load(dy_half);
    const V32 c = at.load(head.cosines), s = at.load(head.sines);
    at.store(hn::MulAdd(a, c, hn::Mul(b, s)), u);
    at.store(hn::Sub(hn::Mul(b, c), hn::Mul(a, s)), u + half);
  });
  for_lanes(head.size - rest, [&](auto at) HWY_ATTR { at.store(at.load(dy_rest), u + rest); });
}

HWY_INLINE Head head_of(const Rope& op, std::int64_t n) {
  const std::int64_t half = op.rotations.cols / 2;
  const float* rotations = op.rotations.row<float>(*op.position.row<std::int32_t>(n));
  return {op.x.cols / op.at.heads, half, rotations, rotations + half, op.w ? op.w.row<float>(0) : nullptr};
}

HWY_INLINE float gain_of(const Rope& op, std::int64_t h) {
  return op.gain ? op.gain.row<float>(0)[op.gain.cols == 1 ? 0 : h] : 1.0f;
}

// rstd[h] of all heads: scalar sums first, then vectorized square roots and divisions.
template <class X>
HWY_INLINE void norm_heads(const Rope& op, std::int64_t D, X x, float* rstd) {
  for (std::int64_t h = 0; h < op.at.heads; ++h) rstd[h] = dot(x + h * D, x + h * D, D);
  const V32 over_size = all(1.0f / static_cast<float>(D)), eps = all(op.at.eps);
  for_lanes(op.at.heads, [&](auto at) HWY_ATTR {
    at.store(hn::Div(all(1), hn::Sqrt(hn::MulAdd(at.load(rstd), over_size, eps))), rstd);
  });
}

void rope_rows(const Rope& op, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n), Row(op.y, n)}, [&](auto x, auto y) HWY_ATTR {
      const Head head = head_of(op, n);
      const std::int64_t D = head.size;
      float* rstd = op.rstd.row<float>(n);
      if (op.at.norm)
        norm_heads(op, D, x, rstd);
      else
        *rstd = 1;
      for (std::int64_t h = 0; h < op.at.heads; ++h)
        rotate_head(head, x + h * D, (op.at.norm ? rstd[h] : 1.0f) * gain_of(op, h), y + h * D);
    });
}

// One head of one row. dgain (one sum) and dw [D] may be nullptr. u is scratch for one head.
template <class X, class DY, class DX>
HWY_INLINE void head_backward(const Rope& op, const Head& head, X x, DY dy, DX dx, float gain, float rstd,
                              float* dgain, float* dw, float* u) {
  const std::int64_t D = head.size;
  rotate_back(head, dy, u);
  const auto weighted_u = [&](auto at) HWY_ATTR { return weighted(at, at.load(u), head.w); };
  // dy . rotated(x_hat) = u . x_hat, because rotation preserves inner products.
  const float correlation =
      op.at.norm || dgain
          ? sum_lanes(D, [&](auto at) HWY_ATTR { return hn::Mul(weighted_u(at), at.load(x)); })
          : 0.0f;
  if (dgain) *dgain += correlation * rstd;
  const V32 a = all(gain * rstd);
  const V32 b = all(op.at.norm ? -gain * rstd * rstd * rstd * correlation / static_cast<float>(D) : 0.0f);
  for_lanes(D, [&](auto at) HWY_ATTR {
    if (dw) at.store(hn::MulAdd(hn::Mul(a, at.load(u)), at.load(x), at.load(dw)), dw);
    if (!dx) return;
    const V32 straight = hn::Mul(a, weighted_u(at));
    put(at, op.at.norm ? hn::MulAdd(b, at.load(x), straight) : straight, dx, op.add_dx);
  });
}

// sums: dgain in the first H columns, dw in the next D. u is scratch for one head.
void rope_backward_rows(const Rope& op, std::int64_t begin, std::int64_t end, float* sums, float* u) {
  float* dw = op.dw ? sums + op.at.heads : nullptr;
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n), Row(op.dy, n), Row(op.dx, n)}, [&](auto x, auto dy, auto dx) HWY_ATTR {
      const Head head = head_of(op, n);
      const std::int64_t D = head.size;
      for (std::int64_t h = 0; h < op.at.heads; ++h)
        head_backward(op, head, x + h * D, dy + h * D, dx ? dx + h * D : dx, gain_of(op, h),
                      op.at.norm ? op.rstd.row<float>(n)[h] : 1.0f, op.dgain ? sums + h : nullptr, dw, u);
    });
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(rope_rows);
HWY_EXPORT(rope_backward_rows);

namespace {

void rope_forward(const Context&, const OpCall& call) {
  const Rope op(call);
  parallel_for(op.x.rows, rows_per_task(op.x.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(rope_rows)(op, begin, end);
  });
}

void rope_backward(const Context&, const OpCall& call) {
  const Rope op(call);
  const std::int64_t H = op.at.heads, D = op.x.cols / H;
  sum_over_rows(
      // The D columns after dgain and dw are scratch of each block, for one head rotated back.
      op.x.rows, H + 2 * D, call.scratch,
      [&](std::int64_t begin, std::int64_t end, float* sums) {
        HWY_DYNAMIC_DISPATCH(rope_backward_rows)(op, begin, end, sums, sums + H + D);
      },
      [&](const float* total) {
        if (op.dgain) add_total(total, H, op.dgain.row<float>(0), op.dgain.cols);
        if (op.dw) add_total(total + H, D, op.dw.row<float>(0), D);
      });
}

std::int64_t rope_scratch_bytes(std::span<const Shape> in, const Attributes& attributes) {
  const std::int64_t N = in[0].rows, C = in[0].cols;
  const auto heads = attributes.as<RopeAttributes>().heads;
  return row_sum_bytes(N, heads + 2 * C / heads);
}

}  // namespace

constinit const Kernels kRope = {.forward = rope_forward,
                                 .backward = rope_backward,
                                 .rows = dtypes({DType::f32, DType::bf16}),
                                 .wide_gradients = true,
                                 .scratch_bytes = rope_scratch_bytes};

}  // namespace thimble::cpu
#endif
