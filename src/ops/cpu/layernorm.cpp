#include "ops/norm.h"

#include <cmath>

#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/layernorm.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// As rmsnorm: the statistics of a few rows, then the rows.
void layernorm_rows(const LayerNorm& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t C = op.x.cols;
  const auto width = static_cast<float>(C);
  const float* w = op.w ? op.w.row<float>(0) : nullptr;
  const float* b = op.b ? op.b.row<float>(0) : nullptr;
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n)}, [&](auto x) HWY_ATTR {
      const float mean = sum_lanes(C, [&](auto at) HWY_ATTR { return at.load(x); }) / width;
      const V32 centre = all(mean);
      // Two passes: the one-pass formula loses the variance of rows far from 0.
      const float squares = sum_lanes(C, [&](auto at) HWY_ATTR {
        const V32 apart = at.or_zero(hn::Sub(at.load(x), centre));
        return hn::Mul(apart, apart);
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

// sums: dw in the first C columns, db in the next.
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
        const V32 apart = hn::Sub(hn::Sub(gradient(at), mean_g), hn::Mul(normed, mean_gx));
        put(at, hn::Mul(rstd, apart), dx, op.add_dx);
      });
    });
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(layernorm_rows);
HWY_EXPORT(layernorm_backward_rows);

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

}  // namespace thimble::cpu
#endif
