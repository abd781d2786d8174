// rmsnorm and layernorm. Statistics of a few rows are computed first, then those rows are
// normalized while still in cache. The square root and division of one row overlap with the sum of
// the next.
#include "ops/norm.h"

#include <cmath>

#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/norm.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

void rmsnorm_rows(const RmsNorm& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t C = op.x.cols;
  const float* w = op.w ? op.w.row<float>(0) : nullptr;
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n)}, [&](auto x) HWY_ATTR {
      *op.rstd.row<float>(n) = 1.0f / std::sqrt(dot(x, x, C) / static_cast<float>(C) + op.at.eps);
    });
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n), Row(op.y, n)}, [&](auto x, auto y) HWY_ATTR {
      const V32 factor = all(*op.rstd.row<float>(n) * op.at.scale);
      for_lanes(C, [&](auto at) HWY_ATTR {
        const V32 scaled = hn::Mul(at.load(x), factor);
        at.store(w ? hn::Mul(scaled, at.load(w)) : scaled, y);
      });
    });
}

void rmsnorm_backward_rows(const RmsNorm& op, std::int64_t begin, std::int64_t end, float* dw) {
  const std::int64_t C = op.x.cols;
  const float* w = op.w ? op.w.row<float>(0) : nullptr;
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n), Row(op.dy, n), Row(op.dx, n)}, [&](auto x, auto dy, auto dx) HWY_ATTR {
      const float rstd = *op.rstd.row<float>(n);
      const auto gradient = [&](auto at)
                                HWY_ATTR { return w ? hn::Mul(at.load(dy), at.load(w)) : at.load(dy); };
      const float correlation =
          sum_lanes(C, [&](auto at) HWY_ATTR { return hn::Mul(gradient(at), at.load(x)); });
      const V32 a = all(op.at.scale * rstd);
      const V32 b = all(-op.at.scale * rstd * rstd * rstd * correlation / static_cast<float>(C));
      for_lanes(C, [&](auto at) HWY_ATTR {
        const V32 value = at.load(x);
        if (dw) at.store(hn::MulAdd(hn::Mul(a, at.load(dy)), value, at.load(dw)), dw);
        if (dx) put(at, hn::MulAdd(a, gradient(at), hn::Mul(b, value)), dx, op.add_dx);
      });
    });
}

void layernorm_rows(const LayerNorm& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t C = op.x.cols;
  const auto width = static_cast<float>(C);
  const float* w = op.w ? op.w.row<float>(0) : nullptr;
  const float* b = op.b ? op.b.row<float>(0) : nullptr;
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n)}, [&](auto x) HWY_ATTR {
      const float mean = sum_lanes(C, [&](auto at) HWY_ATTR { return at.load(x); }) / width;
      const V32 centre = all(mean);
      // Two passes: the one-pass formula loses precision for rows with a mean far from 0.
      const float squares = sum_lanes(C, [&](auto at) HWY_ATTR {
        const V32 difference = at.or_zero(hn::Sub(at.load(x), centre));
        return hn::Mul(difference, difference);
      });
      *op.mean.row<float>(n) = mean;
      *op.rstd.row<float>(n) = 1.0f / std::sqrt(squares / width + op.at.eps);
    });
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n), Row(op.y, n)}, [&](auto x, auto y) HWY_ATTR {
      const V32 centre = all(*op.mean.row<float>(n)), factor = all(*op.rstd.row<float>(n));
      for_lanes(C, [&](auto at) HWY_ATTR {
        V32 value = hn::Mul(hn::Sub(at.load(x), centre), factor);
        if (w) value = hn::Mul(value, at.load(w));
        if (b) value = hn::Add(value, at.load(b));
        at.store(value, y);
      });
    });
}

// sums: dw in the first C columns, db in the next C.
void layernorm_backward_rows(const LayerNorm& op, std::int64_t begin, std::int64_t end, float* sums) {
  const std::int64_t C = op.x.cols;
  const float* w = op.w ? op.w.row<float>(0) : nullptr;
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n), Row(op.dy, n), Row(op.dx, n)}, [&](auto x, auto dy, auto dx) HWY_ATTR {
      const V32 centre = all(*op.mean.row<float>(n)), rstd = all(*op.rstd.row<float>(n));
      const auto gradient = [&](auto at)
                                HWY_ATTR { return w ? hn::Mul(at.load(dy), at.load(w)) : at.load(dy); };
      const auto x_hat = [&](auto at) HWY_ATTR { return hn::Mul(hn::Sub(at.load(x), centre), rstd); };
      V32 sum_g = hn::Zero(F32()), sum_gx = sum_g;
      for_lanes(C, [&](auto at) HWY_ATTR {
        const V32 g = gradient(at);
        sum_g = hn::Add(sum_g, g);
        sum_gx = hn::MulAdd(g, x_hat(at), sum_gx);
      });
      const V32 mean_g = all(sum_of_lanes(sum_g) / static_cast<float>(C));
      const V32 mean_gx = all(sum_of_lanes(sum_gx) / static_cast<float>(C));
      for_lanes(C, [&](auto at) HWY_ATTR {
        const V32 normed = x_hat(at);
        if (sums) {
          at.store(hn::MulAdd(at.load(dy), normed, at.load(sums)), sums);
          at.store(hn::Add(at.load(dy), at.load(sums + C)), sums + C);
        }
        if (!dx) return;
        const V32 difference = hn::Sub(hn::Sub(gradient(at), mean_g), hn::Mul(normed, mean_gx));
        put(at, hn::Mul(rstd, difference), dx, op.add_dx);
      });
    });
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(rmsnorm_rows);
HWY_EXPORT(rmsnorm_backward_rows);
HWY_EXPORT(layernorm_rows);
HWY_EXPORT(layernorm_backward_rows);

namespace {

void rmsnorm_forward(const Context&, const OpCall& call) {
  const RmsNorm op(call);
  parallel_for(op.x.rows, rows_per_task(op.x.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(rmsnorm_rows)(op, begin, end);
  });
}

void rmsnorm_backward(const Context&, const OpCall& call) {
  const RmsNorm op(call);
  const std::int64_t width = op.dw ? op.x.cols : 0;
  sum_over_rows(
      op.x.rows, width, call.scratch,
      [&](std::int64_t begin, std::int64_t end, float* dw) {
        HWY_DYNAMIC_DISPATCH(rmsnorm_backward_rows)(op, begin, end, dw);
      },
      [&](const float* total) { add_total(total, width, op.dw.row<float>(0), width); });
}

void layernorm_forward(const Context&, const OpCall& call) {
  const LayerNorm op(call);
  parallel_for(op.x.rows, rows_per_task(op.x.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(layernorm_rows)(op, begin, end);
  });
}

void layernorm_backward(const Context&, const OpCall& call) {
  const LayerNorm op(call);
  const std::int64_t C = op.x.cols;
  sum_over_rows(
      op.x.rows, op.dw || op.db ? 2 * C : 0, call.scratch,
      [&](std::int64_t begin, std::int64_t end, float* sums) {
        HWY_DYNAMIC_DISPATCH(layernorm_backward_rows)(op, begin, end, sums);
      },
      [&](const float* total) {
        if (op.dw) add_total(total, C, op.dw.row<float>(0), C);
        if (op.db) add_total(total + C, C, op.db.row<float>(0), C);
      });
}

std::int64_t rmsnorm_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  const std::int64_t N = in[0].rows, C = in[0].cols;
  return row_sum_bytes(N, C);
}

std::int64_t layernorm_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  const std::int64_t N = in[0].rows, C = in[0].cols;
  return row_sum_bytes(N, 2 * C);
}

}  // namespace

constinit const Kernels kRmsNorm = {.forward = rmsnorm_forward,
                                    .backward = rmsnorm_backward,
                                    .rows = dtypes({DType::f32, DType::bf16}),
                                    .wide_gradients = true,
                                    .scratch_bytes = rmsnorm_scratch_bytes};
constinit const Kernels kLayerNorm = {.forward = layernorm_forward,
                                      .backward = layernorm_backward,
                                      .rows = dtypes({DType::f32, DType::bf16}),
                                      .wide_gradients = true,
                                      .scratch_bytes = layernorm_scratch_bytes};

}  // namespace thimble::cpu
#endif
