// residual_mix and the rmsnorm that follows it, in one pass over memory, forward with the add_scaled whose sum is mixed:
// rows of bf16 in registers, a norm without weights. Other calls take their kernels one after the other.
//
// Backward computes y again from x and x0, to the same bits, and never writes its gradient. (With the sum's gradients in
// the same kernel there are too few registers: twice as slow.)
#include "ops/cuda/fused.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/row_registers.cuh"
#include "ops/residual.h"
#include "ops/rmsnorm.h"

namespace thimble::cuda {

namespace {

// Eight values of one row of the mix, or the one that all columns share.
__device__ void load_mix(const View& mix, int which, int column, float (&m)[kVector]) {
  if (mix.cols > 1) return unpack(fetch(mix, which, column, false), false, m);
  const float shared = load_one(mix, which, 0);
#pragma unroll
  for (int i = 0; i < kVector; ++i) m[i] = shared;
}

// y of x, before it is rounded.
template <int P>
__device__ void mix_row(const View& mix, Row<P>& x, const RawRow<P>& x0) {
  const Row<P> other = unpack_row(x0);
#pragma unroll
  for (int p = 0; p < P; ++p) {
    if (column_of(p) >= mix.cols && mix.cols > 1) continue;
    float m0[kVector], m1[kVector];
    load_mix(mix, 0, column_of(p), m0);
    load_mix(mix, 1, column_of(p), m1);
#pragma unroll
    for (int i = 0; i < kVector; ++i) x.at[p][i] = mixed(m0[i], x.at[p][i], m1[i], other.at[p][i]);
  }
}

// The sum that is mixed, where it is part of the kernel.
struct Sum {
  View x, branch, scale;
  float factor;

  explicit Sum(const AddScaled& op) : x(op.x), branch(op.branch), scale(op.scale), factor(op.factor) {}
};

template <int P>
__device__ Row<P> add_row(const Sum& sum, const RawRow<P>& x, const RawRow<P>& branch) {
  Row<P> a = unpack_row(x);
  const Row<P> gain = load_scale_row<P>(sum.scale), b = unpack_row(branch);
#pragma unroll
  for (int p = 0; p < P; ++p)
#pragma unroll
    for (int i = 0; i < kVector; ++i) a.at[p][i] += sum.factor * gain.at[p][i] * b.at[p][i];
  return a;
}

template <int P, bool Sums>
void forward(cudaStream_t stream, const AddScaled& add, const ResidualMix& op, const RmsNorm& norm) {
  const Sum sum(add);
  const View x(op.x), x0(op.x0), mix(op.mix), y(op.y), h(norm.y), rstd(norm.rstd);
  const RmsNormAttributes at = norm.at;
  for_each_row_once<P>("residual_mix and rmsnorm", stream, op.y.rows, [=] __device__(std::int64_t row) {
    const RawRow<P> raw = fetch_row<P>(Sums ? sum.x : x, row), raw0 = fetch_row<P>(x0, row);
    Row<P> a;
    if constexpr (Sums) {
      a = add_row(sum, raw, fetch_row<P>(sum.branch, row));
      store_row(x, row, a);  // mixed as stored: backward sees no other
    } else {
      a = unpack_row(raw);
    }
    mix_row(mix, a, raw0);
    store_row(y, row, a);  // the norm is that of the stored row
    const float r = 1.0f / sqrtf(row_dot(a, a) / static_cast<float>(y.cols) + at.eps);
#pragma unroll
    for (int p = 0; p < P; ++p)
#pragma unroll
      for (int i = 0; i < kVector; ++i) a.at[p][i] *= r * at.scale;
    store_row(h, row, a);
    if (threadIdx.x % kWarp == 0) store_one(rstd, row, 0, r);
  });
}

template <int P>
__device__ void round_row(Row<P>& x) {
#pragma unroll
  for (int p = 0; p < P; ++p)
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      const float2 two = unpack(pack(x.at[p][i], x.at[p][i + 1]));
      x.at[p][i] = two.x, x.at[p][i + 1] = two.y;
    }
}

template <int P>
void backward(cudaStream_t stream, const RmsNorm& norm, const ResidualMix& op, void* scratch) {
  const View x(op.x), x0(op.x0), mix(op.mix), rstd(norm.rstd), dh(norm.dy), dx(op.dx), dx0(op.dx0);
  const GradientRow<P> dy{View(norm.dx), norm.add_dx};
  const bool one_value = op.dx.data == op.dx0.data, add = op.add_dx, add0 = op.add_dx0 && !one_value;
  const float scale = norm.at.scale;
  const int cols = static_cast<int>(op.x.cols);
  const Tensor dmix = op.dmix;
  const auto body = [=] __device__(const RowsOfWarp& rows, RowSums<P, 2>& sums) {
    rows.each([&](std::int64_t row) {
      const RawRow<P> raw = fetch_row<P>(x, row), raw0 = fetch_row<P>(x0, row),
                      raw_dh = fetch_row<P>(dh, row), raw_dy = dy.fetch(row);
      Raw earlier0[P] = {};
#pragma unroll
      for (int p = 0; p < P; ++p)
        if (add0 && column_of(p) < cols) earlier0[p] = fetch(dx0, row, column_of(p));
      const float r = load_one(rstd, row, 0);
      Row<P> a = unpack_row(raw), g = unpack_row(raw_dh);
      mix_row(mix, a, raw0);
      round_row(a);
#pragma unroll
      for (int p = 0; p < P; ++p)
#pragma unroll
        for (int i = 0; i < kVector; ++i) a.at[p][i] *= r, g.at[p][i] *= scale;
      const float mean = row_dot(a, g) / static_cast<float>(cols);
      const Row<P> later = unpack_row(raw_dy), b = unpack_row(raw), b0 = unpack_row(raw0);
#pragma unroll
      for (int p = 0; p < P; ++p) {
        const int c = column_of(p);
        if (c >= cols) continue;
        float m0[kVector], m1[kVector], before[kVector] = {}, before0[kVector];
        load_mix(mix, 0, c, m0);
        load_mix(mix, 1, c, m1);
        if (add) load(dx, row, c, before);
        unpack(earlier0[p], dx0, before0);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float gradient = later.at[p][i] + r * (g.at[p][i] - a.at[p][i] * mean);
          sums.of[0].at[p][i] += gradient * b.at[p][i];
          sums.of[1].at[p][i] += gradient * b0.at[p][i];
          before[i] += m0[i] * gradient;
          before0[i] = (one_value ? before[i] : before0[i]) + m1[i] * gradient;
        }
        if (!one_value) store(dx, row, c, before);
        store(dx0, row, c, before0);
      }
    });
  };
  for_rows_with_sums<P, 2>(
      "rmsnorm and residual_mix backward", stream, op.x.rows, cols, scratch,
      {{View(dmix ? dmix.row_range(0, 1) : dmix), View(dmix ? dmix.row_range(1, 1) : dmix)}}, body);
}

}  // namespace

void mix_norm_forward(const Context& context, std::span<const OpCall* const> calls) {
  const ResidualMix mix(*calls[0]);
  const RmsNorm norm(*calls[1]);
  const auto in_registers = [&](auto packs) {
    forward<packs(), false>(stream_of(context), AddScaled(OpCall{}), mix, norm);
  };
  if (!norm.w && with_packs({mix.x, mix.x0, mix.y, norm.y}, {mix.mix}, in_registers)) return;
  residual_mix_forward(context, *calls[0]);
  rmsnorm_forward(context, *calls[1]);
}

void mix_norm_backward(const Context& context, std::span<const OpCall* const> calls) {
  const RmsNorm norm(*calls[0]);
  const ResidualMix mix(*calls[1]);
  const auto in_registers = [&](auto packs) {
    backward<packs()>(stream_of(context), norm, mix, calls[1]->scratch.data);
  };
  if (!norm.w && mix.dx && mix.dx0 && vectorised(mix.dx, {mix.dx0}) &&
      with_packs({mix.x, mix.x0, norm.dy, norm.dx}, {mix.mix}, in_registers))
    return;
  rmsnorm_backward(context, *calls[0]);
  residual_mix_backward(context, *calls[1]);
}

// A sum that is x0, too, has to be there before it is mixed.
void sum_mix_norm_forward(const Context& context, std::span<const OpCall* const> calls) {
  const AddScaled sum(*calls[0]);
  const ResidualMix mix(*calls[1]);
  const RmsNorm norm(*calls[2]);
  const auto in_registers = [&](auto packs) { forward<packs(), true>(stream_of(context), sum, mix, norm); };
  if (mix.x.data != mix.x0.data && !norm.w &&
      with_packs({sum.x, sum.branch, mix.x, mix.x0, mix.y, norm.y}, {mix.mix, sum.scale}, in_registers))
    return;
  add_scaled_forward(context, *calls[0]);
  mix_norm_forward(context, calls.subspan(1));
}

}  // namespace thimble::cuda
