#include "ops/head_loss.h"

#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/softcap.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

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

HWY_EXPORT(softcap_rows);
HWY_EXPORT(softcap_backward_rows);

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

}  // namespace thimble::cpu
#endif
