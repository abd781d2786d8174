#include "ops/layernorm.h"

#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/kernels.h"

namespace thimble::cuda {

namespace {

template <int V>
void forward(cudaStream_t stream, const LayerNorm& op) {
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
void backward_rows(cudaStream_t stream, const LayerNorm& op) {
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
void backward_vectors(cudaStream_t stream, const LayerNorm& op, void* scratch) {
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
void backward(cudaStream_t stream, const LayerNorm& op, void* scratch) {
  if (op.dx) backward_rows<V>(stream, op);
  if (op.dw || op.db) backward_vectors<V>(stream, op, scratch);
}

}  // namespace

void layernorm_forward(const Context& context, const OpCall& call) {
  const LayerNorm op(call);
  if (vectorised(op.x, {op.w, op.b, op.y}))
    forward<kVector>(stream_of(context), op);
  else
    forward<1>(stream_of(context), op);
}

void layernorm_backward(const Context& context, const OpCall& call) {
  const LayerNorm op(call);
  if (vectorised(op.x, {op.w, op.dy, op.dx}))
    backward<kVector>(stream_of(context), op, call.scratch.data);
  else
    backward<1>(stream_of(context), op, call.scratch.data);
}

}  // namespace thimble::cuda
