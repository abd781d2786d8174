#include "ops/residual.h"

#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gated_skip.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// g = sigmoid(gate) and 1 - g, once for all rows.
void fill_shares(const GatedSkip& op, float* g, float* rest) {
  const float* gate = op.gate.row<float>(0);
  for_lanes(op.gate.cols, [&](auto at) HWY_ATTR {
    const Sigmoid share = sigmoid_and_rest(at.load(gate));
    at.store(share.value, g);
    at.store(share.rest, rest);
  });
}

void gated_skip_rows(const GatedSkip& op, const float* g, const float* rest, std::int64_t begin,
                     std::int64_t end) {
  const float* w = op.w.row<float>(0);
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n), Row(op.skip, n), Row(op.y, n)}, [&](auto x, auto skip, auto y) HWY_ATTR {
      for_lanes(op.y.cols, [&](auto at) HWY_ATTR {
        const V32 added = hn::Mul(hn::Mul(at.load(rest), at.load(w)), at.load(skip));
        at.store(hn::MulAdd(at.load(g), at.load(x), added), y);
      });
    });
}

// sums: dy skip in the first C columns, dy (x - w skip) in the next; their factors come when they are whole.
void gated_skip_backward_rows(const GatedSkip& op, const float* g, const float* rest, std::int64_t begin,
                              std::int64_t end, float* sums) {
  const std::int64_t C = op.dy.cols;
  const float* w = op.w.row<float>(0);
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.dy, n), Row(op.dx, n), Row(op.dskip, n), Row(op.x, n), Row(op.skip, n)},
              [&](auto dy, auto dx, auto dskip, auto x, auto skip) HWY_ATTR {
                for_lanes(C, [&](auto at) HWY_ATTR {
                  const V32 gradient = at.load(dy), weight = at.load(w);
                  if (dx) put(at, hn::Mul(at.load(g), gradient), dx, op.add_dx);
                  if (dskip) put(at, hn::Mul(hn::Mul(at.load(rest), weight), gradient), dskip, op.add_dskip);
                  if (!sums) return;
                  const V32 earlier = at.load(skip);
                  const V32 apart = hn::NegMulAdd(weight, earlier, at.load(x));
                  at.store(hn::MulAdd(gradient, earlier, at.load(sums)), sums);
                  at.store(hn::MulAdd(gradient, apart, at.load(sums + C)), sums + C);
                });
              });
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(fill_shares);
HWY_EXPORT(gated_skip_rows);
HWY_EXPORT(gated_skip_backward_rows);

namespace {

// The scratch: g and 1 - g, then the sums over rows.
struct Shares {
  float *g, *rest;
  Tensor sums;

  Shares(const GatedSkip& op, const Tensor& scratch) {
    const std::int64_t row = row_bytes(op.gate.cols);
    g = static_cast<float*>(scratch.data);
    rest = static_cast<float*>(scratch.columns(row, row).data);
    sums = scratch.columns(2 * row, scratch.cols - 2 * row);
    HWY_DYNAMIC_DISPATCH(fill_shares)(op, g, rest);
  }
};

}  // namespace

void gated_skip_forward(const Context&, const OpCall& call) {
  const GatedSkip op(call);
  const Shares shares(op, call.scratch);
  parallel_for(op.y.rows, rows_per_task(op.y.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(gated_skip_rows)(op, shares.g, shares.rest, begin, end);
  });
}

void gated_skip_backward(const Context&, const OpCall& call) {
  const GatedSkip op(call);
  const Shares shares(op, call.scratch);
  const std::int64_t C = op.dy.cols;
  sum_over_rows(
      op.dy.rows, op.dw || op.dgate ? 2 * C : 0, shares.sums,
      [&](std::int64_t begin, std::int64_t end, float* sums) {
        HWY_DYNAMIC_DISPATCH(gated_skip_backward_rows)(op, shares.g, shares.rest, begin, end, sums);
      },
      [&](const float* total) {
        for (std::int64_t c = 0; c < C; ++c) {
          if (op.dw) op.dw.row<float>(0)[c] += shares.rest[c] * total[c];
          if (op.dgate) op.dgate.row<float>(0)[c] += shares.g[c] * shares.rest[c] * total[C + c];
        }
      });
}

}  // namespace thimble::cpu
#endif
