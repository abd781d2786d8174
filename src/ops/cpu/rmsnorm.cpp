#include "ops/norm.h"

#include <cmath>

#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rmsnorm.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// The statistics of a few rows first, then the rows, still in cache: one row's root and quotient hide behind the
// next one's sum.
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

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(rmsnorm_rows);
HWY_EXPORT(rmsnorm_backward_rows);

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

}  // namespace thimble::cpu
#endif
