// activation and dropout.
#include "base/rng.h"
#include "ops/cuda/rows.cuh"
#include "ops/elementwise.h"

namespace thimble::cuda {

namespace {

// `<= 0` is false for NaN, which therefore propagates.
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

// Of the gate of a gated kind: silu or gelu.
__device__ float gate_value(ActivationKind kind, float x) {
  return kind == ActivationKind::swiglu ? x * sigmoid(x) : value(kind, x);
}

__device__ float gate_slope(ActivationKind kind, float x) {
  if (kind != ActivationKind::swiglu) return slope(kind, x);
  const float s = sigmoid(x);
  return s * (1 + x * (1 - s));
}

template <int V>
void activation(cudaStream_t stream, const Activation& op) {
  const View x(op.x), y(op.y);
  const ActivationKind kind = op.kind;
  const bool gated = is_gated(kind);
  for_each_pack<V>("activation", stream, op.y.rows, op.y.cols, [=] __device__(std::int64_t row, int c) {
    float a[V];
    load(x, row, c, a);
    if (gated) {
      float up[V];
      load(x, row, y.cols + c, up);
#pragma unroll
      for (int i = 0; i < V; ++i) a[i] = gate_value(kind, a[i]) * up[i];
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) a[i] = value(kind, a[i]);
    }
    store(y, row, c, a);
  });
}

template <int V>
void activation_gradients(cudaStream_t stream, const Activation& op) {
  const View x(op.x), dy(op.dy), dx(op.dx);
  const ActivationKind kind = op.kind;
  const bool add = op.add_dx, gated = is_gated(kind);
  for_each_pack<V>("activation backward", stream, op.dy.rows, op.dy.cols,
                   [=] __device__(std::int64_t row, int c) {
                     float a[V], g[V];
                     load(x, row, c, a);
                     load(dy, row, c, g);
                     if (gated) {
                       float up[V];
                       load(x, row, dy.cols + c, up);
#pragma unroll
                       for (int i = 0; i < V; ++i) {
                         const float d_up = g[i] * gate_value(kind, a[i]);
                         g[i] *= up[i] * gate_slope(kind, a[i]);
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

// For gated kinds the second half starts at column F: it is aligned if F is a multiple of the
// vector length, which the check of y and dy covers.
void activation_forward(const Context& context, const OpCall& call) {
  const Activation op(call);
  if (vectorized(op.x, {op.y}))
    activation<kVector>(stream_of(context), op);
  else
    activation<1>(stream_of(context), op);
}

void activation_backward(const Context& context, const OpCall& call) {
  const Activation op(call);
  if (!op.dx) return;
  if (vectorized(op.x, {op.dy, op.dx}))
    activation_gradients<kVector>(stream_of(context), op);
  else
    activation_gradients<1>(stream_of(context), op);
}

// to <- from m / (1 - p), for forward and backward. The seed is read from memory, so a replayed
// graph gets a new mask.
template <int V>
void drop(cudaStream_t stream, const Tensor& from_rows, const Tensor& to_rows, const Tensor& seed_words,
          DropoutAttributes at, bool add) {
  const View from(from_rows), to(to_rows);
  const Ints seed(seed_words);
  const std::uint64_t threshold = dropout_threshold(at.p);
  const float kept = 1.0f / (1.0f - at.p);
  const std::uint64_t stream_number = at.stream;
  for_each_pack<V>("dropout", stream, to_rows.rows, to_rows.cols, [=] __device__(std::int64_t row, int c) {
    const std::uint64_t key =
        std::uint64_t{static_cast<std::uint32_t>(seed[1])} << 32 | static_cast<std::uint32_t>(seed[0]);
    const std::uint64_t element = static_cast<std::uint64_t>(row) * to.cols + c;
    float a[V];
    load(from, row, c, a);
    if (V == kVector) {  // `element` is a multiple of 8: whole Philox blocks of 4 words
#pragma unroll
      for (int b = 0; b < V / 4; ++b) {
        const auto words = philox(key, stream_number, element / 4 + b);
#pragma unroll
        for (int i = 0; i < 4; ++i) a[4 * b + i] *= words[i] < threshold ? 0.0f : kept;
      }
    } else {
      a[0] *= philox(key, stream_number, element / 4)[element % 4] < threshold ? 0.0f : kept;
    }
    put(to, row, c, a, add);
  });
}

void drop(const Context& context, const Tensor& from, const Tensor& to, const Dropout& op, bool add) {
  if (vectorized(from, {to}))
    drop<kVector>(stream_of(context), from, to, op.seed, op.at, add);
  else
    drop<1>(stream_of(context), from, to, op.seed, op.at, add);
}

void dropout_forward(const Context& context, const OpCall& call) {
  const Dropout op(call);
  drop(context, op.x, op.y, op, false);
}

void dropout_backward(const Context& context, const OpCall& call) {
  const Dropout op(call);
  if (op.dx) drop(context, op.dy, op.dx, op, op.add_dx);
}

}  // namespace

extern const PluginOp kActivation = {"activation",
                                     {.forward = activation_forward,
                                      .backward = activation_backward,
                                      .rows = kRowTypes,
                                      .wide_gradients = true}};
extern const PluginOp kDropout = {
    "dropout",
    {.forward = dropout_forward, .backward = dropout_backward, .rows = kRowTypes, .wide_gradients = true}};

}  // namespace thimble::cuda
