// rmsnorm and layernorm, one warp per row. rmsnorm keeps bf16 rows in registers if they fit
// (row_registers.cuh); other rows are read again in each step.
#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/row_registers.cuh"
#include "ops/norm.h"

namespace thimble::cuda {

namespace {

template <int V>
void rmsnorm(cudaStream_t stream, const RmsNorm& op) {
  const View x(op.x), w(op.w), y(op.y), rstd(op.rstd);
  const RmsNormAttributes at = op.at;
  for_each_row("rmsnorm", stream, op.x.rows, [=] __device__(std::int64_t row, int lane) {
    float squares = 0;
    for (int c = lane * V; c < x.cols; c += kWarp * V) {
      float a[V];
      load(x, row, c, a);
#pragma unroll
      for (int i = 0; i < V; ++i) squares += a[i] * a[i];
    }
    const float r = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(x.cols) + at.eps);
    for (int c = lane * V; c < x.cols; c += kWarp * V) {
      float a[V], gain[V];
      load(x, row, c, a);
      if (w) load(w, 0, c, gain);
#pragma unroll
      for (int i = 0; i < V; ++i) a[i] *= r * at.scale * (w ? gain[i] : 1.0f);
      store(y, row, c, a);
    }
    if (lane == 0) store_one(rstd, row, 0, r);
  });
}

template <int V>
void rmsnorm_gradients(cudaStream_t stream, const RmsNorm& op, void* scratch) {
  const View x(op.x), w(op.w), rstd(op.rstd), dy(op.dy), dx(op.dx);
  const float scale = op.at.scale;
  const bool add = op.add_dx;
  if (op.dx)
    for_each_row("rmsnorm backward", stream, op.x.rows, [=] __device__(std::int64_t row, int lane) {
      const float r = load_one(rstd, row, 0);
      const auto gradient = [&](int c, float(&a)[V], float(&g)[V]) {  // x_hat and g of V columns
        float gain[V];
        load(x, row, c, a);
        load(dy, row, c, g);
        if (w) load(w, 0, c, gain);
#pragma unroll
        for (int i = 0; i < V; ++i) a[i] *= r, g[i] *= scale * (w ? gain[i] : 1.0f);
      };
      float sum = 0;
      for (int c = lane * V; c < x.cols; c += kWarp * V) {
        float a[V], g[V];
        gradient(c, a, g);
#pragma unroll
        for (int i = 0; i < V; ++i) sum += a[i] * g[i];
      }
      const float mean = warp_sum(sum) / static_cast<float>(x.cols);
      for (int c = lane * V; c < x.cols; c += kWarp * V) {
        float a[V], g[V];
        gradient(c, a, g);
#pragma unroll
        for (int i = 0; i < V; ++i) g[i] = r * (g[i] - a[i] * mean);
        put(dx, row, c, g, add);
      }
    });
  if (op.dw)
    add_column_sums<V, 1>("rmsnorm weight", stream, op.x.rows, op.x.cols, scratch, {{View(op.dw)}},
                          [=] __device__(std::int64_t row, int c, float(&sums)[1][V]) {
                            const float r = load_one(rstd, row, 0) * scale;
                            float a[V], g[V];
                            load(x, row, c, a);
                            load(dy, row, c, g);
#pragma unroll
                            for (int i = 0; i < V; ++i) sums[0][i] += a[i] * g[i] * r;
                          });
}

template <int P>
void rmsnorm_in_registers(cudaStream_t stream, const RmsNorm& op) {
  const View x(op.x), w(op.w), y(op.y), rstd(op.rstd);
  const RmsNormAttributes at = op.at;
  for_each_row_once<P>("rmsnorm", stream, op.x.rows, [=] __device__(std::int64_t row) {
    const RawRow<P> raw = fetch_row<P>(x, row);
    const Row<P> weight = load_scale_row<P>(w);
    Row<P> a = unpack_row(raw);
    const float r = 1.0f / sqrtf(row_dot(a, a) / static_cast<float>(x.cols) + at.eps);
#pragma unroll
    for (int p = 0; p < P; ++p)
#pragma unroll
      for (int i = 0; i < kVector; ++i) a.at[p][i] *= r * at.scale * weight.at[p][i];
    store_row(y, row, a);
    if (threadIdx.x % kWarp == 0) store_one(rstd, row, 0, r);
  });
}

template <int P>
void rmsnorm_gradients_in_registers(cudaStream_t stream, const RmsNorm& op, void* scratch) {
  const View x(op.x), w(op.w), rstd(op.rstd), dy(op.dy);
  const GradientRow<P> dx{View(op.dx), op.add_dx};
  const float scale = op.at.scale;
  const int cols = static_cast<int>(op.x.cols);
  const auto body = [=] __device__(const RowsOfWarp& rows, RowSums<P, 1>& sums) {
    const Row<P> weight = load_scale_row<P>(w);
    rows.each([&](std::int64_t row) {
      const RawRow<P> raw = fetch_row<P>(x, row), raw_gradient = fetch_row<P>(dy, row),
                      before = dx.fetch(row);
      const float r = load_one(rstd, row, 0);
      Row<P> a = unpack_row(raw), g = unpack_row(raw_gradient);
#pragma unroll
      for (int p = 0; p < P; ++p)
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          a.at[p][i] *= r;
          g.at[p][i] *= scale;
          sums.of[0].at[p][i] += g.at[p][i] * a.at[p][i];
          g.at[p][i] *= weight.at[p][i];
        }
      const float mean = row_dot(a, g) / static_cast<float>(cols);
#pragma unroll
      for (int p = 0; p < P; ++p)
#pragma unroll
        for (int i = 0; i < kVector; ++i) g.at[p][i] = r * (g.at[p][i] - a.at[p][i] * mean);
      dx.put(row, g, before);
    });
  };
  for_rows_with_sums<P, 1>("rmsnorm backward", stream, op.x.rows, cols, scratch, {{View(op.dw)}}, body);
}

void rmsnorm_forward(const Context& context, const OpCall& call) {
  const RmsNorm op(call);
  const auto in_registers = [&](auto packs) { rmsnorm_in_registers<packs()>(stream_of(context), op); };
  if (with_packs({op.x, op.y}, {op.w}, in_registers)) return;
  if (vectorized(op.x, {op.w, op.y}))
    rmsnorm<kVector>(stream_of(context), op);
  else
    rmsnorm<1>(stream_of(context), op);
}

void rmsnorm_backward(const Context& context, const OpCall& call) {
  const RmsNorm op(call);
  const auto in_registers = [&](auto packs) {
    rmsnorm_gradients_in_registers<packs()>(stream_of(context), op, call.scratch.data);
  };
  if (with_packs({op.x, op.dy, op.dx}, {op.w}, in_registers)) return;
  if (vectorized(op.x, {op.w, op.dy, op.dx, op.dw}))
    rmsnorm_gradients<kVector>(stream_of(context), op, call.scratch.data);
  else
    rmsnorm_gradients<1>(stream_of(context), op, call.scratch.data);
}

template <int V>
void layernorm(cudaStream_t stream, const LayerNorm& op) {
  const View x(op.x), w(op.w), b(op.b), y(op.y), mean(op.mean), rstd(op.rstd);
  const float eps = op.at.eps;
  for_each_row("layernorm", stream, op.x.rows, [=] __device__(std::int64_t row, int lane) {
    const float width = static_cast<float>(x.cols);
    float a[V];
    float sum = 0;
    for (int c = lane * V; c < x.cols; c += kWarp * V) {
      load(x, row, c, a);
#pragma unroll
      for (int i = 0; i < V; ++i) sum += a[i];
    }
    const float m = warp_sum(sum) / width;
    float squares = 0;
    for (int c = lane * V; c < x.cols; c += kWarp * V) {
      load(x, row, c, a);
#pragma unroll
      for (int i = 0; i < V; ++i) squares += (a[i] - m) * (a[i] - m);
    }
    const float r = 1.0f / sqrtf(warp_sum(squares) / width + eps);
    for (int c = lane * V; c < x.cols; c += kWarp * V) {
      float gain[V], bias[V];
      load(x, row, c, a);
      if (w) load(w, 0, c, gain);
      if (b) load(b, 0, c, bias);
#pragma unroll
      for (int i = 0; i < V; ++i) a[i] = (a[i] - m) * r * (w ? gain[i] : 1.0f) + (b ? bias[i] : 0.0f);
      store(y, row, c, a);
    }
    if (lane != 0) return;
    store_one(mean, row, 0, m);
    store_one(rstd, row, 0, r);
  });
}

template <int V>
void layernorm_gradient_rows(cudaStream_t stream, const LayerNorm& op) {
  const View x(op.x), w(op.w), mean(op.mean), rstd(op.rstd), dy(op.dy), dx(op.dx);
  const bool add = op.add_dx;
  for_each_row("layernorm backward", stream, op.x.rows, [=] __device__(std::int64_t row, int lane) {
    const float m = load_one(mean, row, 0), r = load_one(rstd, row, 0);
    const auto gradient = [&](int c, float(&a)[V], float(&g)[V]) {  // x_hat and g of V columns
      float gain[V];
      load(x, row, c, a);
      load(dy, row, c, g);
      if (w) load(w, 0, c, gain);
#pragma unroll
      for (int i = 0; i < V; ++i) a[i] = (a[i] - m) * r, g[i] *= w ? gain[i] : 1.0f;
    };
    float sum_g = 0, sum_gx = 0;
    for (int c = lane * V; c < x.cols; c += kWarp * V) {
      float a[V], g[V];
      gradient(c, a, g);
#pragma unroll
      for (int i = 0; i < V; ++i) sum_g += g[i], sum_gx += g[i] * a[i];
    }
    const float width = static_cast<float>(x.cols);
    const float mean_g = warp_sum(sum_g) / width, mean_gx = warp_sum(sum_gx) / width;
    for (int c = lane * V; c < x.cols; c += kWarp * V) {
      float a[V], g[V];
      gradient(c, a, g);
#pragma unroll
      for (int i = 0; i < V; ++i) g[i] = r * (g[i] - mean_g - a[i] * mean_gx);
      put(dx, row, c, g, add);
    }
  });
}

template <int V>
void layernorm_gradient_vectors(cudaStream_t stream, const LayerNorm& op, void* scratch) {
  const View x(op.x), mean(op.mean), rstd(op.rstd), dy(op.dy);
  add_column_sums<V, 2>("layernorm weight", stream, op.x.rows, op.x.cols, scratch,
                        {{View(op.dw), View(op.db)}},
                        [=] __device__(std::int64_t row, int c, float(&sums)[2][V]) {
                          const float m = load_one(mean, row, 0), r = load_one(rstd, row, 0);
                          float a[V], g[V];
                          load(x, row, c, a);
                          load(dy, row, c, g);
#pragma unroll
                          for (int i = 0; i < V; ++i) sums[0][i] += g[i] * (a[i] - m) * r, sums[1][i] += g[i];
                        });
}

template <int V>
void layernorm_gradients(cudaStream_t stream, const LayerNorm& op, void* scratch) {
  if (op.dx) layernorm_gradient_rows<V>(stream, op);
  if (op.dw || op.db) layernorm_gradient_vectors<V>(stream, op, scratch);
}

void layernorm_forward(const Context& context, const OpCall& call) {
  const LayerNorm op(call);
  if (vectorized(op.x, {op.w, op.b, op.y}))
    layernorm<kVector>(stream_of(context), op);
  else
    layernorm<1>(stream_of(context), op);
}

void layernorm_backward(const Context& context, const OpCall& call) {
  const LayerNorm op(call);
  if (vectorized(op.x, {op.w, op.dy, op.dx}))
    layernorm_gradients<kVector>(stream_of(context), op, call.scratch.data);
  else
    layernorm_gradients<1>(stream_of(context), op, call.scratch.data);
}

std::int64_t rmsnorm_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  return column_sum_bytes(in[0].rows, in[0].cols, 1);
}

std::int64_t layernorm_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  return column_sum_bytes(in[0].rows, in[0].cols, 2);
}

}  // namespace

extern const PluginOp kRmsNorm = {"rmsnorm",
                                  {.forward = rmsnorm_forward,
                                   .backward = rmsnorm_backward,
                                   .rows = kRowTypes,
                                   .wide_gradients = true,
                                   .scratch_bytes = rmsnorm_scratch_bytes}};
extern const PluginOp kLayerNorm = {"layernorm",
                                    {.forward = layernorm_forward,
                                     .backward = layernorm_backward,
                                     .rows = kRowTypes,
                                     .wide_gradients = true,
                                     .scratch_bytes = layernorm_scratch_bytes}};

}  // namespace thimble::cuda
