// Sums on the residual stream and the following norm, in one pass over memory: residual_norm (s = x
// + scale (.) branch and its norm), and residual_mix with rmsnorm as a fused run. Rows stay in
// registers if they fit (row_registers.cuh).
#include "ops/cuda/row_registers.cuh"
#include "ops/norm.h"
#include "ops/residual.h"

namespace thimble::cuda {

extern const PluginOp kAddScaled, kResidualMix, kRmsNorm;  // for rows too long for registers

namespace {

template <int V>
void residual_norm(cudaStream_t stream, const ResidualNorm& op) {
  const View x(op.x), branch(op.branch), scale(op.scale), w(op.w), s(op.s), h(op.h), rstd(op.rstd);
  const ResidualNormAttributes at = op.at;
  for_each_row("residual_norm", stream, op.x.rows, [=] __device__(std::int64_t row, int lane) {
    float squares = 0;
    for (int c = lane * V; c < x.cols; c += kWarp * V) {
      float a[V], b[V], gain[V];
      load(x, row, c, a);
      load(branch, row, c, b);
      load_scale(scale, 0, c, gain);
#pragma unroll
      for (int i = 0; i < V; ++i) a[i] += gain[i] * b[i];
      store(s, row, c, a);
      load(s, row, c, a);  // rounded as stored, which is what backward reads
#pragma unroll
      for (int i = 0; i < V; ++i) squares += a[i] * a[i];
    }
    const float r = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(x.cols) + at.eps);
    for (int c = lane * V; c < x.cols; c += kWarp * V) {
      float a[V], gain[V];
      load(s, row, c, a);
      load_scale(w, 0, c, gain);
#pragma unroll
      for (int i = 0; i < V; ++i) a[i] *= r * at.norm_scale * gain[i];
      store(h, row, c, a);
    }
    if (lane == 0) store_one(rstd, row, 0, r);
  });
}

// Inputs of the norm's backward for V columns: a = s rstd, g = norm_scale dh w.
template <int V>
struct NormGradient {
  View s, w, dh;
  float norm_scale;

  __device__ void operator()(std::int64_t row, int c, float r, float (&a)[V], float (&g)[V]) const {
    float gain[V];
    load(s, row, c, a);
    load(dh, row, c, g);
    load_scale(w, 0, c, gain);
#pragma unroll
    for (int i = 0; i < V; ++i) a[i] *= r, g[i] *= norm_scale * gain[i];
  }
};

template <int V>
void residual_norm_rows(cudaStream_t stream, const ResidualNorm& op, float* means) {
  const View scale(op.scale), rstd(op.rstd), ds(op.ds), dx(op.dx), dbranch(op.dbranch);
  const NormGradient<V> norm{View(op.s), View(op.w), View(op.dh), op.at.norm_scale};
  const bool add_dx = op.add_dx, add_dbranch = op.add_dbranch;
  const int cols = static_cast<int>(op.s.cols);
  for_each_row("residual_norm backward", stream, op.s.rows, [=] __device__(std::int64_t row, int lane) {
    const float r = load_one(rstd, row, 0);
    float sum = 0;
    for (int c = lane * V; c < cols; c += kWarp * V) {
      float a[V], g[V];
      norm(row, c, r, a, g);
#pragma unroll
      for (int i = 0; i < V; ++i) sum += a[i] * g[i];
    }
    const float mean = warp_sum(sum) / static_cast<float>(cols);
    if (lane == 0) means[row] = mean;
    if (!dx && !dbranch) return;
    for (int c = lane * V; c < cols; c += kWarp * V) {
      float a[V], g[V], later[V], gain[V];
      norm(row, c, r, a, g);
      if (ds) load(ds, row, c, later);
      load_scale(scale, 0, c, gain);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        g[i] = (ds ? later[i] : 0.0f) + r * (g[i] - a[i] * mean);
        gain[i] *= g[i];
      }
      put(dx, row, c, g, add_dx);
      put(dbranch, row, c, gain, add_dbranch);
    }
  });
}

template <int V>
void residual_norm_vectors(cudaStream_t stream, const ResidualNorm& op, const float* means, void* scratch) {
  const View branch(op.branch), rstd(op.rstd), ds(op.ds), dh(op.dh);
  const NormGradient<V> norm{View(op.s), View(op.w), View(op.dh), op.at.norm_scale};
  const bool needs_scale = static_cast<bool>(op.dscale);
  add_column_sums<V, 2>("residual_norm vectors", stream, op.s.rows, op.s.cols, scratch,
                        {{View(op.dscale), View(op.dw)}},
                        [=] __device__(std::int64_t row, int c, float(&sums)[2][V]) {
                          const float r = load_one(rstd, row, 0), mean = means[row];
                          float a[V], g[V], plain[V];
                          norm(row, c, r, a, g);
                          load(dh, row, c, plain);
#pragma unroll
                          for (int i = 0; i < V; ++i) sums[1][i] += norm.norm_scale * plain[i] * a[i];
                          if (!needs_scale) return;
                          float later[V], b[V];
                          if (ds) load(ds, row, c, later);
                          load(branch, row, c, b);
#pragma unroll
                          for (int i = 0; i < V; ++i)
                            sums[0][i] += ((ds ? later[i] : 0.0f) + r * (g[i] - a[i] * mean)) * b[i];
                        });
}

template <int V>
void residual_norm_gradients(cudaStream_t stream, const ResidualNorm& op, void* scratch) {
  auto* means = static_cast<float*>(scratch);
  residual_norm_rows<V>(stream, op, means);
  if (op.dscale || op.dw) residual_norm_vectors<V>(stream, op, means, means + op.s.rows);
}

template <int P>
void residual_norm_in_registers(cudaStream_t stream, const ResidualNorm& op) {
  const View x(op.x), branch(op.branch), scale(op.scale), w(op.w), s(op.s), h(op.h), rstd(op.rstd);
  const ResidualNormAttributes at = op.at;
  for_each_row_once<P>("residual_norm", stream, op.x.rows, [=] __device__(std::int64_t row) {
    const RawRow<P> raw = fetch_row<P>(x, row), raw_branch = fetch_row<P>(branch, row);
    const Row<P> gain = load_scale_row<P>(scale), weight = load_scale_row<P>(w), b = unpack_row(raw_branch);
    Row<P> a = unpack_row(raw);
#pragma unroll
    for (int p = 0; p < P; ++p)
#pragma unroll
      for (int i = 0; i < kVector; ++i) a.at[p][i] += gain.at[p][i] * b.at[p][i];
    store_row(s, row, a);  // also rounds a: the norm is of the stored row
    const float r = 1.0f / sqrtf(row_dot(a, a) / static_cast<float>(x.cols) + at.eps);
#pragma unroll
    for (int p = 0; p < P; ++p)
#pragma unroll
      for (int i = 0; i < kVector; ++i) a.at[p][i] *= r * at.norm_scale * weight.at[p][i];
    store_row(h, row, a);
    if (threadIdx.x % kWarp == 0) store_one(rstd, row, 0, r);
  });
}

// Sums: the gradient of scale and, if Weighted, the gradient of w.
template <int P, bool Weighted>
void residual_norm_gradient_rows(cudaStream_t stream, const ResidualNorm& op, void* scratch,
                                 const Gradients<Weighted ? 2 : 1>& gradients) {
  constexpr int kSums = Weighted ? 2 : 1;
  const View branch(op.branch), scale(op.scale), w(op.w), s(op.s), rstd(op.rstd), ds(op.ds), dh(op.dh);
  const GradientRow<P> dx{View(op.dx), op.add_dx}, dbranch{View(op.dbranch), op.add_dbranch};
  const float norm_scale = op.at.norm_scale;
  const int cols = static_cast<int>(op.s.cols);
  const auto body = [=] __device__(const RowsOfWarp& rows, RowSums<P, kSums>& sums) {
    const Row<P> gain = load_scale_row<P>(scale);
    [[maybe_unused]] const Row<P> weight = load_scale_row<P>(w);
    rows.each([&](std::int64_t row) {
      const RawRow<P> raw = fetch_row<P>(s, row), raw_gradient = fetch_row<P>(dh, row),
                      raw_later = fetch_row<P>(ds, row), raw_branch = fetch_row<P>(branch, row),
                      before = dx.fetch(row), branch_before = dbranch.fetch(row);
      const float r = load_one(rstd, row, 0);
      Row<P> a = unpack_row(raw), g = unpack_row(raw_gradient);
#pragma unroll
      for (int p = 0; p < P; ++p)
#pragma unroll
        for (int i = 0; i < kVector; ++i) a.at[p][i] *= r, g.at[p][i] *= norm_scale;
      if constexpr (Weighted) {
#pragma unroll
        for (int p = 0; p < P; ++p)
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            sums.of[1].at[p][i] += g.at[p][i] * a.at[p][i];
            g.at[p][i] *= weight.at[p][i];
          }
      }
      const float mean = row_dot(a, g) / static_cast<float>(cols);
      const Row<P> later = unpack_row(raw_later);
      Row<P> b = unpack_row(raw_branch);
#pragma unroll
      for (int p = 0; p < P; ++p)
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          g.at[p][i] = later.at[p][i] + r * (g.at[p][i] - a.at[p][i] * mean);
          sums.of[0].at[p][i] += g.at[p][i] * b.at[p][i];
          b.at[p][i] = gain.at[p][i] * g.at[p][i];
        }
      dx.put(row, g, before);
      dbranch.put(row, b, branch_before);
    });
  };
  for_rows_with_sums<P, kSums>("residual_norm backward", stream, op.s.rows, cols, scratch, gradients, body);
}

void residual_norm_forward(const Context& context, const OpCall& call) {
  const ResidualNorm op(call);
  const auto in_registers = [&](auto packs) { residual_norm_in_registers<packs()>(stream_of(context), op); };
  if (with_packs({op.x, op.branch, op.s, op.h}, {op.scale, op.w}, in_registers)) return;
  if (vectorized(op.x, {op.branch, op.scale, op.w, op.s, op.h}))
    residual_norm<kVector>(stream_of(context), op);
  else
    residual_norm<1>(stream_of(context), op);
}

void residual_norm_backward(const Context& context, const OpCall& call) {
  const ResidualNorm op(call);
  const auto in_registers = [&](auto packs) {
    if (op.w)
      residual_norm_gradient_rows<packs(), true>(stream_of(context), op, call.scratch.data,
                                                 {{View(op.dscale), View(op.dw)}});
    else
      residual_norm_gradient_rows<packs(), false>(stream_of(context), op, call.scratch.data,
                                                  {{View(op.dscale)}});
  };
  const bool one_value =
      op.dx && op.dx.data == op.dbranch.data;  // the second must read what the first stored
  if (!one_value &&
      with_packs({op.branch, op.s, op.ds, op.dh, op.dx, op.dbranch}, {op.scale, op.w}, in_registers))
    return;
  if (vectorized(op.branch, {op.scale, op.w, op.s, op.ds, op.dh, op.dx, op.dbranch}))
    residual_norm_gradients<kVector>(stream_of(context), op, call.scratch.data);
  else
    residual_norm_gradients<1>(stream_of(context), op, call.scratch.data);
}

// residual_mix fused with the following rmsnorm, and in forward also with the add_scaled that
// produces x, for bf16 rows in registers and a norm without weights. Other calls run the separate
// kernels.
//
// Backward recomputes y from x and x0, with the same bits, and never writes the gradient of y.
// (Including the gradients of add_scaled would need too many registers and be twice as slow.)
//
// load_mix: eight values of one row of the mix, or the value shared by all columns.
__device__ void load_mix(const View& mix, int which, int column, float (&m)[kVector]) {
  if (mix.cols > 1) return unpack(fetch(mix, which, column, false), false, m);
  const float shared = load_one(mix, which, 0);
#pragma unroll
  for (int i = 0; i < kVector; ++i) m[i] = shared;
}

// Replaces x by y = mix[0] x + mix[1] x0, not yet rounded.
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

// The add_scaled that produces x, if it is part of the kernel.
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
void mix_and_norm(cudaStream_t stream, const AddScaled& add, const ResidualMix& op, const RmsNorm& norm) {
  const Sum sum(add);
  const View x(op.x), x0(op.x0), mix(op.mix), y(op.y), h(norm.y), rstd(norm.rstd);
  const RmsNormAttributes at = norm.at;
  for_each_row_once<P>("residual_mix and rmsnorm", stream, op.y.rows, [=] __device__(std::int64_t row) {
    const RawRow<P> raw = fetch_row<P>(Sums ? sum.x : x, row), raw0 = fetch_row<P>(x0, row);
    Row<P> a;
    if constexpr (Sums) {
      a = add_row(sum, raw, fetch_row<P>(sum.branch, row));
      store_row(x, row, a);  // rounded as stored, which is what backward reads
    } else {
      a = unpack_row(raw);
    }
    mix_row(mix, a, raw0);
    store_row(y, row, a);  // also rounds a: the norm is of the stored row
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
void mix_and_norm_gradients(cudaStream_t stream, const RmsNorm& norm, const ResidualMix& op, void* scratch) {
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

void mix_norm_forward(const Context& context, std::span<const OpCall* const> calls) {
  const ResidualMix mix(*calls[0]);
  const RmsNorm norm(*calls[1]);
  const auto in_registers = [&](auto packs) {
    mix_and_norm<packs(), false>(stream_of(context), AddScaled(OpCall{}), mix, norm);
  };
  if (!norm.w && with_packs({mix.x, mix.x0, mix.y, norm.y}, {mix.mix}, in_registers)) return;
  kResidualMix.kernels.forward(context, *calls[0]);
  kRmsNorm.kernels.forward(context, *calls[1]);
}

void mix_norm_backward(const Context& context, std::span<const OpCall* const> calls) {
  const RmsNorm norm(*calls[0]);
  const ResidualMix mix(*calls[1]);
  const auto in_registers = [&](auto packs) {
    mix_and_norm_gradients<packs()>(stream_of(context), norm, mix, calls[1]->scratch.data);
  };
  if (!norm.w && mix.dx && mix.dx0 && vectorized(mix.dx, {mix.dx0}) &&
      with_packs({mix.x, mix.x0, norm.dy, norm.dx}, {mix.mix}, in_registers))
    return;
  kRmsNorm.kernels.backward(context, *calls[0]);
  kResidualMix.kernels.backward(context, *calls[1]);
}

// If the sum is also x0, it must be stored before it is mixed.
void sum_mix_norm_forward(const Context& context, std::span<const OpCall* const> calls) {
  const AddScaled sum(*calls[0]);
  const ResidualMix mix(*calls[1]);
  const RmsNorm norm(*calls[2]);
  const auto in_registers = [&](auto packs) {
    mix_and_norm<packs(), true>(stream_of(context), sum, mix, norm);
  };
  if (mix.x.data != mix.x0.data && !norm.w &&
      with_packs({sum.x, sum.branch, mix.x, mix.x0, mix.y, norm.y}, {mix.mix, sum.scale}, in_registers))
    return;
  kAddScaled.kernels.forward(context, *calls[0]);
  mix_norm_forward(context, calls.subspan(1));
}

std::int64_t residual_norm_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  // One mean per row, then the sums.
  return in[0].rows * kFloatBytes + column_sum_bytes(in[0].rows, in[0].cols, 2);
}

}  // namespace

extern const PluginOp kResidualNorm = {"residual_norm",
                                       {.forward = residual_norm_forward,
                                        .backward = residual_norm_backward,
                                        .rows = kRowTypes,
                                        .wide_gradients = true,
                                        .scratch_bytes = residual_norm_scratch_bytes}};

extern const FusedRun kMixNorm = {.ops = {"residual_mix", "rmsnorm"}, .kernel = mix_norm_forward};
extern const FusedRun kMixNormBackward = {
    .ops = {"rmsnorm", "residual_mix"}, .backward = true, .kernel = mix_norm_backward};
extern const FusedRun kSumMixNorm = {.ops = {"add_scaled", "residual_mix", "rmsnorm"},
                                     .kernel = sum_mix_norm_forward};

}  // namespace thimble::cuda
