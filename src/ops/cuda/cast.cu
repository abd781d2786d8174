// cast and fake_quant: compute copies of parameters.
#include "ops/cast.h"

#include <cuda_fp16.h>

#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

namespace {

template <int V>
void cast_rows(cudaStream_t stream, const Tensor& from_rows, const Tensor& to_rows, bool add) {
  const View from(from_rows), to(to_rows);
  for_each_pack<V>("cast", stream, to_rows.rows, to_rows.cols, [=] __device__(std::int64_t row, int c) {
    float a[V];
    load(from, row, c, a);
    put(to, row, c, a, add);
  });
}

void cast(const Context& context, const Tensor& from, const Tensor& to, bool add) {
  if (vectorized(from, {to}))
    cast_rows<kVector>(stream_of(context), from, to, add);
  else
    cast_rows<1>(stream_of(context), from, to, add);
}

void cast_forward(const Context& context, const OpCall& call) {
  const Cast op(call);
  cast(context, op.x, op.y, false);
}

void cast_backward(const Context& context, const OpCall& call) {
  const Cast op(call);
  if (op.dx) cast(context, op.dy, op.dx, op.add_dx);
}

// fake_quant implements the quantizer's rule (ops/quantize.cpp) bit for bit, with one thread block
// per row: products and sums are rounded individually, as on the host.
//
// The quantile of the int8 clip is so high that it lies between the two largest magnitudes of every
// row up to kWidestRow columns.
constexpr float kClipQuantile = 0.9999984f;
constexpr std::int64_t kWidestRow = 300000;

// The two largest magnitudes of a row.
struct Top {
  float first, second;

  __device__ void add(float value) {
    second = fmaxf(second, fminf(first, value));
    first = fmaxf(first, value);
  }
};

__device__ float through_f16(float value) {
  return __half2float(__float2half_rn(value));
}

// Rounding parameters, computed from the largest magnitudes of a row.
struct Rule {
  float scale, clip, lowest, highest, stored;
};

__device__ Rule rule_of(Top top, std::int32_t bits, std::int64_t width) {
  if (bits == 8) {
    const float position = kClipQuantile * static_cast<float>(width - 1);
    const auto below = static_cast<std::int64_t>(position);
    float clip = top.first;
    if (below + 1 < width) {
      const float share = position - static_cast<float>(below), gap = top.first - top.second;
      clip = share < 0.5f ? __fadd_rn(top.second, __fmul_rn(share, gap))
                          : __fsub_rn(top.first, __fmul_rn(gap, 1 - share));
    }
    const float scale = fmaxf(clip / 127.0f, 1.0f / 127.0f);
    return {scale, clip, -127, 127, through_f16(scale)};
  }
  const float highest = bits == 6 ? 31 : 15;
  const float scale = through_f16(top.first / highest);
  return {scale, INFINITY, -highest - 1, highest, scale};
}

__global__ void __launch_bounds__(kThreads) quantize_rows(View w, View y, std::int32_t bits) {
  const std::int64_t row = blockIdx.x;
  Top top{0, 0};
  int finite = 1;
  for (int c = threadIdx.x; c < w.cols; c += kThreads) {
    const float value = load_one(w, row, c);
    finite &= isfinite(value) ? 1 : 0;
    top.add(fabsf(value));
  }
  __shared__ Top tops[kThreads];
  tops[threadIdx.x] = top;
  finite = __syncthreads_and(finite);
  for (int step = kThreads / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) {
      tops[threadIdx.x].add(tops[threadIdx.x + step].first);
      tops[threadIdx.x].add(tops[threadIdx.x + step].second);
    }
    __syncthreads();
  }
  const Rule rule = rule_of(tops[0], bits, w.cols);
  for (int c = threadIdx.x; c < w.cols; c += kThreads) {
    const float value = load_one(w, row, c), clipped = fminf(fmaxf(value, -rule.clip), rule.clip);
    const float steps =
        rule.scale == 0 ? 0.0f : fminf(fmaxf(rintf(clipped / rule.scale), rule.lowest), rule.highest);
    // A NaN or infinity makes the whole row NaN. q is an integer, so -0 becomes 0.
    const float q = steps == 0 ? 0.0f : steps;
    store_one(y, row, c, finite ? rule.stored * q : NAN);
  }
}

void fake_quant_forward(const Context& context, const OpCall& call) {
  const FakeQuant op(call);
  if (op.w.cols > kWidestRow) refuse("[fake_quant] expected rows of at most 300000 columns", op.w.cols);
  if (op.w.count() == 0) return;
  quantize_rows<<<blocks_for(op.w.rows, 1), kThreads, 0, stream_of(context)>>>(View(op.w), View(op.y),
                                                                               op.at.bits);
  launched("fake_quant");
}

void fake_quant_backward(const Context& context, const OpCall& call) {
  const FakeQuant op(call);
  if (!op.dw) return;
  const View dy(op.dy), dw(op.dw);
  const bool add = op.add_dw;
  for_each_pack<1>("fake_quant backward", stream_of(context), op.dy.rows, op.dy.cols,
                   [=] __device__(std::int64_t row, int c) {
                     float g[1];
                     load(dy, row, c, g);
                     put(dw, row, c, g, add);
                   });
}

}  // namespace

extern const PluginOp kCast = {
    "cast", {.forward = cast_forward, .backward = cast_backward, .rows = kRowTypes, .wide_gradients = true}};
extern const PluginOp kFakeQuant = {"fake_quant",
                                    {.forward = fake_quant_forward,
                                     .backward = fake_quant_backward,
                                     .rows = dtypes({DType::f32}),
                                     .wide_gradients = true}};

}  // namespace thimble::cuda
