#include "ops/residual.h"

#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/kernels.h"

namespace thimble::cuda {

namespace {

template <int V>
void add_scaled(cudaStream_t stream, const AddScaled& op) {
  const View x(op.x), branch(op.branch), scale(op.scale), y(op.y);
  const float factor = op.factor;
  for_each_pack<V>("add_scaled", stream, op.y.rows, op.y.cols, [=] __device__(std::int64_t row, int c) {
    float a[V], b[V], s[V];
    load(x, row, c, a);
    load(branch, row, c, b);
    load_scale(scale, 0, c, s);
#pragma unroll
    for (int i = 0; i < V; ++i) a[i] += factor * s[i] * b[i];
    store(y, row, c, a);
  });
}

template <int V>
void add_scaled_gradients(cudaStream_t stream, const AddScaled& op, void* scratch) {
  const View branch(op.branch), scale(op.scale), dy(op.dy), dx(op.dx), dbranch(op.dbranch);
  const float factor = op.factor;
  const bool add_dx = op.add_dx, add_dbranch = op.add_dbranch;
  if (op.dx || op.dbranch)
    for_each_pack<V>("add_scaled backward", stream, op.dy.rows, op.dy.cols,
                     [=] __device__(std::int64_t row, int c) {
                       float g[V], s[V];
                       load(dy, row, c, g);
                       load_scale(scale, 0, c, s);
#pragma unroll
                       for (int i = 0; i < V; ++i) s[i] *= factor * g[i];
                       put(dx, row, c, g, add_dx);
                       put(dbranch, row, c, s, add_dbranch);
                     });
  if (op.dscale)
    add_column_sums<V, 1>("add_scaled scale", stream, op.dy.rows, op.dy.cols, scratch, {{View(op.dscale)}},
                          [=] __device__(std::int64_t row, int c, float(&sums)[1][V]) {
                            float g[V], b[V];
                            load(dy, row, c, g);
                            load(branch, row, c, b);
#pragma unroll
                            for (int i = 0; i < V; ++i) sums[0][i] += factor * g[i] * b[i];
                          });
}

template <int V>
void residual_mix(cudaStream_t stream, const ResidualMix& op) {
  const View x(op.x), x0(op.x0), mix(op.mix), y(op.y);
  for_each_pack<V>("residual_mix", stream, op.y.rows, op.y.cols, [=] __device__(std::int64_t row, int c) {
    float a[V], b[V], m0[V], m1[V];
    load(x, row, c, a);
    load(x0, row, c, b);
    load_scale(mix, 0, c, m0);
    load_scale(mix, 1, c, m1);
#pragma unroll
    for (int i = 0; i < V; ++i) a[i] = m0[i] * a[i] + m1[i] * b[i];
    store(y, row, c, a);
  });
}

template <int V>
void residual_mix_gradients(cudaStream_t stream, const ResidualMix& op, void* scratch) {
  const View x(op.x), x0(op.x0), mix(op.mix), dy(op.dy), dx(op.dx), dx0(op.dx0);
  const bool add_dx = op.add_dx, add_dx0 = op.add_dx0;
  if (op.dx || op.dx0)
    for_each_pack<V>("residual_mix backward", stream, op.dy.rows, op.dy.cols,
                     [=] __device__(std::int64_t row, int c) {
                       float g[V], m0[V], m1[V];
                       load(dy, row, c, g);
                       load_scale(mix, 0, c, m0);
                       load_scale(mix, 1, c, m1);
#pragma unroll
                       for (int i = 0; i < V; ++i) m0[i] *= g[i], m1[i] *= g[i];
                       put(dx, row, c, m0, add_dx);
                       put(dx0, row, c, m1, add_dx0);
                     });
  if (op.dmix)
    add_column_sums<V, 2>("residual_mix mix", stream, op.dy.rows, op.dy.cols, scratch,
                          {{View(op.dmix.row_range(0, 1)), View(op.dmix.row_range(1, 1))}},
                          [=] __device__(std::int64_t row, int c, float(&sums)[2][V]) {
                            float g[V], a[V], b[V];
                            load(dy, row, c, g);
                            load(x, row, c, a);
                            load(x0, row, c, b);
#pragma unroll
                            for (int i = 0; i < V; ++i) sums[0][i] += g[i] * a[i], sums[1][i] += g[i] * b[i];
                          });
}

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
      load(s, row, c, a);  // as stored: backward sees no other
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

// The norm's backward of dh in V columns: a = s rstd, g = norm_scale dh w.
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
  const bool wants_scale = static_cast<bool>(op.dscale);
  add_column_sums<V, 2>("residual_norm vectors", stream, op.s.rows, op.s.cols, scratch,
                        {{View(op.dscale), View(op.dw)}},
                        [=] __device__(std::int64_t row, int c, float(&sums)[2][V]) {
                          const float r = load_one(rstd, row, 0), mean = means[row];
                          float a[V], g[V], plain[V];
                          norm(row, c, r, a, g);
                          load(dh, row, c, plain);
#pragma unroll
                          for (int i = 0; i < V; ++i) sums[1][i] += norm.norm_scale * plain[i] * a[i];
                          if (!wants_scale) return;
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

}  // namespace

void add_scaled_forward(const Context& context, const OpCall& call) {
  const AddScaled op(call);
  if (vectorised(op.x, {op.branch, op.scale, op.y}))
    add_scaled<kVector>(stream_of(context), op);
  else
    add_scaled<1>(stream_of(context), op);
}

void add_scaled_backward(const Context& context, const OpCall& call) {
  const AddScaled op(call);
  if (vectorised(op.branch, {op.scale, op.dy, op.dx, op.dbranch}))
    add_scaled_gradients<kVector>(stream_of(context), op, call.scratch.data);
  else
    add_scaled_gradients<1>(stream_of(context), op, call.scratch.data);
}

void residual_mix_forward(const Context& context, const OpCall& call) {
  const ResidualMix op(call);
  if (vectorised(op.x, {op.x0, op.mix, op.y}))
    residual_mix<kVector>(stream_of(context), op);
  else
    residual_mix<1>(stream_of(context), op);
}

void residual_mix_backward(const Context& context, const OpCall& call) {
  const ResidualMix op(call);
  if (vectorised(op.x, {op.x0, op.mix, op.dy, op.dx, op.dx0}))
    residual_mix_gradients<kVector>(stream_of(context), op, call.scratch.data);
  else
    residual_mix_gradients<1>(stream_of(context), op, call.scratch.data);
}

void residual_norm_forward(const Context& context, const OpCall& call) {
  const ResidualNorm op(call);
  if (vectorised(op.x, {op.branch, op.scale, op.w, op.s, op.h}))
    residual_norm<kVector>(stream_of(context), op);
  else
    residual_norm<1>(stream_of(context), op);
}

void residual_norm_backward(const Context& context, const OpCall& call) {
  const ResidualNorm op(call);
  if (vectorised(op.branch, {op.scale, op.w, op.s, op.ds, op.dh, op.dx, op.dbranch}))
    residual_norm_gradients<kVector>(stream_of(context), op, call.scratch.data);
  else
    residual_norm_gradients<1>(stream_of(context), op, call.scratch.data);
}

}  // namespace thimble::cuda
