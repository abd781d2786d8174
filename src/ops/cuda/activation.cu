#include "ops/activation.h"

#include "ops/cuda/kernels.h"
#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

namespace {

// Written so that a NaN, which is neither above nor below zero, comes through.
__device__ float value(ActivationKind kind, float x) {
  switch (kind) {
    case ActivationKind::relu:
      return x <= 0 ? 0.0f : x;
    case ActivationKind::relu2:
      return x <= 0 ? 0.0f : x * x;
    case ActivationKind::leaky_relu2:
      return x <= 0 ? 0.25f * x * x : x * x;
    default:
      return 0.5f * x *
             (1 + tanhf(static_cast<float>(kGeluInner) * (x + static_cast<float>(kGeluCubic) * x * x * x)));
  }
}

__device__ float slope(ActivationKind kind, float x) {
  switch (kind) {
    case ActivationKind::relu:
      return x <= 0 ? 0.0f : x > 0 ? 1.0f : x;
    case ActivationKind::relu2:
      return x <= 0 ? 0.0f : 2 * x;
    case ActivationKind::leaky_relu2:
      return x <= 0 ? 0.5f * x : 2 * x;
    default: {
      const float t =
          tanhf(static_cast<float>(kGeluInner) * (x + static_cast<float>(kGeluCubic) * x * x * x));
      const float inner = static_cast<float>(kGeluInner) * (1 + static_cast<float>(3 * kGeluCubic) * x * x);
      return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * inner;
    }
  }
}

__device__ float sigmoid(float x) {
  return 1 / (1 + expf(-x));
}

template <int V>
void forward(cudaStream_t stream, const Activation& op) {
  const View x(op.x), y(op.y);
  const ActivationKind kind = op.kind;
  for_each_pack<V>("activation", stream, op.y.rows, op.y.cols, [=] __device__(std::int64_t row, int c) {
    float a[V];
    load(x, row, c, a);
    if (kind == ActivationKind::swiglu) {
      float up[V];
      load(x, row, y.cols + c, up);
#pragma unroll
      for (int i = 0; i < V; ++i) a[i] *= sigmoid(a[i]) * up[i];
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) a[i] = value(kind, a[i]);
    }
    store(y, row, c, a);
  });
}

template <int V>
void backward(cudaStream_t stream, const Activation& op) {
  const View x(op.x), dy(op.dy), dx(op.dx);
  const ActivationKind kind = op.kind;
  const bool add = op.add_dx;
  for_each_pack<V>("activation backward", stream, op.dy.rows, op.dy.cols,
                   [=] __device__(std::int64_t row, int c) {
                     float a[V], g[V];
                     load(x, row, c, a);
                     load(dy, row, c, g);
                     if (kind == ActivationKind::swiglu) {
                       float up[V];
                       load(x, row, dy.cols + c, up);
#pragma unroll
                       for (int i = 0; i < V; ++i) {
                         const float s = sigmoid(a[i]), d_up = g[i] * a[i] * s;
                         g[i] *= up[i] * s * (1 + a[i] * (1 - s));
                         up[i] = d_up;
                       }
                       put(dx, row, dy.cols + c, up, add);
                     } else {
#pragma unroll
                       for (int i = 0; i < V; ++i) g[i] *= slope(kind, a[i]);
                     }
                     put(dx, row, c, g, add);
                   });
}

}  // namespace

// For swiglu the second half starts at column F: it is aligned if F is a multiple of the vector, which y and dy show.
void activation_forward(const Context& context, const OpCall& call) {
  const Activation op(call);
  if (vectorised(op.x, {op.y}))
    forward<kVector>(stream_of(context), op);
  else
    forward<1>(stream_of(context), op);
}

void activation_backward(const Context& context, const OpCall& call) {
  const Activation op(call);
  if (!op.dx) return;
  if (vectorised(op.x, {op.dy, op.dx}))
    backward<kVector>(stream_of(context), op);
  else
    backward<1>(stream_of(context), op);
}

}  // namespace thimble::cuda
