// add_scaled, residual_mix, residual_norm and gated_skip, each in one pass over the rows. Backward
// computes the gradients of the scales in the same pass.
#include "ops/residual.h"

#include <cmath>

#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/residual.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// A constant times a scale, which is absent (1), one shared value or one value per channel.
class Scale {
 public:
  Scale(const Tensor& tensor, std::int64_t row, float factor)
      : channels_(tensor && tensor.cols > 1 ? tensor.row<float>(row) : nullptr),
        shared_(factor * (tensor && tensor.cols == 1 ? *tensor.row<float>(row) : 1.0f)) {}

  template <class At>
  HWY_INLINE V32 at(At at) const {
    return channels_ ? hn::Mul(at.load(channels_), all(shared_)) : all(shared_);
  }

 private:
  const float* channels_;
  float shared_;
};

void add_scaled_rows(const AddScaled& op, std::int64_t begin, std::int64_t end) {
  const Scale scale(op.scale, 0, op.factor);
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n), Row(op.branch, n), Row(op.y, n)}, [&](auto x, auto branch, auto y) HWY_ATTR {
      for_lanes(op.y.cols, [&](auto at) HWY_ATTR {
        at.store(hn::MulAdd(scale.at(at), at.load(branch), at.load(x)), y);
      });
    });
}

void add_scaled_backward_rows(const AddScaled& op, std::int64_t begin, std::int64_t end, float* dscale) {
  const Scale scale(op.scale, 0, op.factor);
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.dy, n), Row(op.dx, n), Row(op.dbranch, n), Row(op.branch, n)},
              [&](auto dy, auto dx, auto dbranch, auto branch) HWY_ATTR {
                for_lanes(op.dy.cols, [&](auto at) HWY_ATTR {
                  const V32 gradient = at.load(dy);
                  if (dx) put(at, gradient, dx, op.add_dx);
                  if (dbranch) put(at, hn::Mul(scale.at(at), gradient), dbranch, op.add_dbranch);
                  if (dscale)
                    at.store(hn::MulAdd(hn::Mul(all(op.factor), gradient), at.load(branch), at.load(dscale)),
                             dscale);
                });
              });
}

void residual_mix_rows(const ResidualMix& op, std::int64_t begin, std::int64_t end) {
  const Scale of_x(op.mix, 0, 1), of_x0(op.mix, 1, 1);
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n), Row(op.x0, n), Row(op.y, n)}, [&](auto x, auto x0, auto y) HWY_ATTR {
      for_lanes(op.y.cols, [&](auto at) HWY_ATTR {
        at.store(hn::MulAdd(of_x.at(at), at.load(x), hn::Mul(of_x0.at(at), at.load(x0))), y);
      });
    });
}

// sums: dmix[0] in the first C columns, dmix[1] in the next C.
void residual_mix_backward_rows(const ResidualMix& op, std::int64_t begin, std::int64_t end, float* sums) {
  const std::int64_t C = op.dy.cols;
  const Scale of_x(op.mix, 0, 1), of_x0(op.mix, 1, 1);
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.dy, n), Row(op.dx, n), Row(op.dx0, n), Row(op.x, n), Row(op.x0, n)},
              [&](auto dy, auto dx, auto dx0, auto x, auto x0) HWY_ATTR {
                for_lanes(C, [&](auto at) HWY_ATTR {
                  const V32 gradient = at.load(dy);
                  if (dx) put(at, hn::Mul(of_x.at(at), gradient), dx, op.add_dx);
                  if (dx0) put(at, hn::Mul(of_x0.at(at), gradient), dx0, op.add_dx0);
                  if (!sums) return;
                  at.store(hn::MulAdd(gradient, at.load(x), at.load(sums)), sums);
                  at.store(hn::MulAdd(gradient, at.load(x0), at.load(sums + C)), sums + C);
                });
              });
}

// As in norm.cpp: first the stream and its statistics for a few rows, then their norms.
void residual_norm_rows(const ResidualNorm& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t C = op.x.cols;
  const Scale scale(op.scale, 0, 1);
  const float* w = op.w ? op.w.row<float>(0) : nullptr;
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n), Row(op.branch, n), Row(op.s, n)}, [&](auto x, auto branch, auto s) HWY_ATTR {
      const float squares = sum_lanes(C, [&](auto at) HWY_ATTR {
        at.store(hn::MulAdd(scale.at(at), at.load(branch), at.load(x)), s);
        const V32 stored = at.load(s);  // rounded, as later ops read it
        return hn::Mul(stored, stored);
      });
      *op.rstd.row<float>(n) = 1.0f / std::sqrt(squares / static_cast<float>(C) + op.at.eps);
    });
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.s, n), Row(op.h, n)}, [&](auto s, auto h) HWY_ATTR {
      const V32 factor = all(*op.rstd.row<float>(n) * op.at.norm_scale);
      for_lanes(C, [&](auto at) HWY_ATTR {
        const V32 scaled = hn::Mul(at.load(s), factor);
        at.store(w ? hn::Mul(scaled, at.load(w)) : scaled, h);
      });
    });
}

// sums: dscale in the first C columns, dw in the next C.
void residual_norm_backward_rows(const ResidualNorm& op, std::int64_t begin, std::int64_t end, float* sums) {
  const std::int64_t C = op.s.cols;
  const Scale scale(op.scale, 0, 1);
  const float* w = op.w ? op.w.row<float>(0) : nullptr;
  for (std::int64_t n = begin; n < end; ++n)
    with_rows(
        {Row(op.s, n), Row(op.dh, n), Row(op.ds, n), Row(op.dx, n), Row(op.dbranch, n), Row(op.branch, n)},
        [&](auto s, auto dh, auto ds, auto dx, auto dbranch, auto branch) HWY_ATTR {
          const float rstd = *op.rstd.row<float>(n);
          const auto gradient = [&](auto at)
                                    HWY_ATTR { return w ? hn::Mul(at.load(dh), at.load(w)) : at.load(dh); };
          const float correlation =
              sum_lanes(C, [&](auto at) HWY_ATTR { return hn::Mul(gradient(at), at.load(s)); });
          const V32 a = all(op.at.norm_scale * rstd);
          const V32 b = all(-op.at.norm_scale * rstd * rstd * rstd * correlation / static_cast<float>(C));
          for_lanes(C, [&](auto at) HWY_ATTR {
            const V32 stream = at.load(s);
            V32 total = hn::MulAdd(a, gradient(at), hn::Mul(b, stream));
            if (ds) total = hn::Add(total, at.load(ds));
            if (dx) put(at, total, dx, op.add_dx);
            if (dbranch) put(at, hn::Mul(scale.at(at), total), dbranch, op.add_dbranch);
            if (!sums) return;
            at.store(hn::MulAdd(total, at.load(branch), at.load(sums)), sums);
            at.store(hn::MulAdd(hn::Mul(a, at.load(dh)), stream, at.load(sums + C)), sums + C);
          });
        });
}

// g = sigmoid(gate) and 1 - g, computed once for all rows.
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

// sums: dy skip in the first C columns, dy (x - w skip) in the next C. Factors are applied last.
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
                  const V32 difference = hn::NegMulAdd(weight, earlier, at.load(x));
                  at.store(hn::MulAdd(gradient, earlier, at.load(sums)), sums);
                  at.store(hn::MulAdd(gradient, difference, at.load(sums + C)), sums + C);
                });
              });
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(add_scaled_rows);
HWY_EXPORT(add_scaled_backward_rows);
HWY_EXPORT(residual_mix_rows);
HWY_EXPORT(residual_mix_backward_rows);
HWY_EXPORT(residual_norm_rows);
HWY_EXPORT(residual_norm_backward_rows);
HWY_EXPORT(fill_shares);
HWY_EXPORT(gated_skip_rows);
HWY_EXPORT(gated_skip_backward_rows);

namespace {

void add_scaled_forward(const Context&, const OpCall& call) {
  const AddScaled op(call);
  parallel_for(op.y.rows, rows_per_task(op.y.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_scaled_rows)(op, begin, end);
  });
}

void add_scaled_backward(const Context&, const OpCall& call) {
  const AddScaled op(call);
  const std::int64_t width = op.dscale ? op.dy.cols : 0;
  sum_over_rows(
      op.dy.rows, width, call.scratch,
      [&](std::int64_t begin, std::int64_t end, float* dscale) {
        HWY_DYNAMIC_DISPATCH(add_scaled_backward_rows)(op, begin, end, dscale);
      },
      [&](const float* total) { add_total(total, width, op.dscale.row<float>(0), op.dscale.cols); });
}

void residual_mix_forward(const Context&, const OpCall& call) {
  const ResidualMix op(call);
  parallel_for(op.y.rows, rows_per_task(op.y.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(residual_mix_rows)(op, begin, end);
  });
}

void residual_mix_backward(const Context&, const OpCall& call) {
  const ResidualMix op(call);
  const std::int64_t C = op.dy.cols;
  sum_over_rows(
      op.dy.rows, op.dmix ? 2 * C : 0, call.scratch,
      [&](std::int64_t begin, std::int64_t end, float* sums) {
        HWY_DYNAMIC_DISPATCH(residual_mix_backward_rows)(op, begin, end, sums);
      },
      [&](const float* total) {
        add_total(total, C, op.dmix.row<float>(0), op.dmix.cols);
        add_total(total + C, C, op.dmix.row<float>(1), op.dmix.cols);
      });
}

void residual_norm_forward(const Context&, const OpCall& call) {
  const ResidualNorm op(call);
  parallel_for(op.x.rows, rows_per_task(op.x.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(residual_norm_rows)(op, begin, end);
  });
}

void residual_norm_backward(const Context&, const OpCall& call) {
  const ResidualNorm op(call);
  const std::int64_t C = op.s.cols;
  sum_over_rows(
      op.s.rows, op.dscale || op.dw ? 2 * C : 0, call.scratch,
      [&](std::int64_t begin, std::int64_t end, float* sums) {
        HWY_DYNAMIC_DISPATCH(residual_norm_backward_rows)(op, begin, end, sums);
      },
      [&](const float* total) {
        if (op.dscale) add_total(total, C, op.dscale.row<float>(0), op.dscale.cols);
        if (op.dw) add_total(total + C, C, op.dw.row<float>(0), C);
      });
}

// Scratch: g and 1 - g, followed by the sums over rows.
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

std::int64_t add_scaled_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  const std::int64_t N = in[0].rows, C = in[0].cols;
  return row_sum_bytes(N, C);
}

std::int64_t residual_mix_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  const std::int64_t N = in[0].rows, C = in[0].cols;
  return row_sum_bytes(N, 2 * C);
}

std::int64_t residual_norm_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  const std::int64_t N = in[0].rows, C = in[0].cols;
  return row_sum_bytes(N, 2 * C);
}

std::int64_t gated_skip_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  const std::int64_t N = in[0].rows, C = in[0].cols;
  return 2 * row_bytes(C) + row_sum_bytes(N, 2 * C);
}

}  // namespace

constinit const Kernels kAddScaled = {.forward = add_scaled_forward,
                                      .backward = add_scaled_backward,
                                      .rows = dtypes({DType::f32, DType::bf16}),
                                      .wide_gradients = true,
                                      .scratch_bytes = add_scaled_scratch_bytes};
constinit const Kernels kResidualMix = {.forward = residual_mix_forward,
                                        .backward = residual_mix_backward,
                                        .rows = dtypes({DType::f32, DType::bf16}),
                                        .wide_gradients = true,
                                        .scratch_bytes = residual_mix_scratch_bytes};
constinit const Kernels kResidualNorm = {.forward = residual_norm_forward,
                                         .backward = residual_norm_backward,
                                         .rows = dtypes({DType::f32, DType::bf16}),
                                         .wide_gradients = true,
                                         .scratch_bytes = residual_norm_scratch_bytes};
constinit const Kernels kGatedSkip = {.forward = gated_skip_forward,
                                      .backward = gated_skip_backward,
                                      .rows = dtypes({DType::f32, DType::bf16}),
                                      .wide_gradients = true,
                                      .scratch_bytes = gated_skip_scratch_bytes};

}  // namespace thimble::cpu
#endif
