// Shared by the row kernels: tensor views, loads and stores of V columns at a time, and loops over
// rows and elements.
//
// Storage is f32, bf16 or f16; arithmetic is f32. The dtype is a run-time value: the branch is
// uniform over a launch, and the kernels are bound by memory. V = 8 if all accesses can be 16
// bytes, otherwise 1.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "graph/op.h"
#include "ops/cuda/runtime.h"
#include "ops/cuda_plugin.h"

namespace thimble::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kThreads = 256;
inline constexpr int kVector = 8;
inline constexpr auto kFloatBytes = static_cast<std::int64_t>(sizeof(float));

// The row dtypes of most kernels.
inline constexpr DTypes kRowTypes = dtypes({DType::f32, DType::bf16, DType::f16});

// Calls of up to this many rows are decoding: the result of a row does not depend on other rows.
// Larger calls process prompts.
inline constexpr std::int64_t kFewRows = 64;

struct View {
  void* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  std::int32_t cols = 0;
  bool half = false;  // 16 bits: bf16, or f16 if f16 is set
  bool f16 = false;

  explicit View(const Tensor& t)
      : data(t.data),
        stride(t.stride),
        rows(t.rows),
        cols(static_cast<std::int32_t>(t.cols)),
        half(t.dtype == DType::bf16 || t.dtype == DType::f16),
        f16(t.dtype == DType::f16) {}
  __device__ explicit operator bool() const { return data != nullptr; }
};

// [N, 1] i32.
struct Ints {
  const std::int32_t* data;
  std::int64_t stride;

  explicit Ints(const Tensor& t) : data(static_cast<const std::int32_t*>(t.data)), stride(t.stride) {}
  __device__ std::int32_t operator[](std::int64_t row) const { return data[row * stride]; }
};

// Two 16-bit values: bf16, or f16 if H is __half.
template <class H = __nv_bfloat16>
__device__ inline float2 unpack(std::uint32_t two) {
  if constexpr (std::is_same_v<H, __half>)
    return __half22float2(*reinterpret_cast<const __half2*>(&two));
  else
    return {__uint_as_float(two << 16), __uint_as_float(two & 0xFFFF0000u)};
}
template <class H = __nv_bfloat16>
__device__ inline std::uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<H, __half>) {
    const __half2 two = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&two);
  } else {
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&two);
  }
}

// Eight columns in storage format. Fetching neither waits nor branches, so all fetches of a thread
// are in flight together; unpacking waits.
struct Raw {
  uint4 low, high;  // high: the second four of f32
};

__device__ inline Raw fetch(const View& v, std::int64_t row, std::int64_t column, bool half) {
  const char* from = static_cast<const char*>(v.data) + ((row * v.stride + column) << (half ? 1 : 2));
  Raw raw{*reinterpret_cast<const uint4*>(from), {}};
  if (!half) raw.high = *reinterpret_cast<const uint4*>(from + sizeof(uint4));
  return raw;
}
__device__ inline Raw fetch(const View& v, std::int64_t row, std::int64_t column) {
  return fetch(v, row, column, v.half);
}

// half: the row is bf16; otherwise f32.
__device__ inline void unpack(const Raw& raw, bool half, float (&x)[kVector]) {
  const std::uint32_t low[4] = {raw.low.x, raw.low.y, raw.low.z, raw.low.w},
                      high[4] = {raw.high.x, raw.high.y, raw.high.z, raw.high.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = unpack(low[i]);
    x[2 * i] = half ? two.x : __uint_as_float(i < 2 ? low[2 * i] : high[2 * i - 4]);
    x[2 * i + 1] = half ? two.y : __uint_as_float(i < 2 ? low[2 * i + 1] : high[2 * i - 3]);
  }
}

// Uses the dtype of the view.
__device__ inline void unpack(const Raw& raw, const View& v, float (&x)[kVector]) {
  if (!v.f16) return unpack(raw, v.half, x);
  const std::uint32_t low[4] = {raw.low.x, raw.low.y, raw.low.z, raw.low.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = unpack<__half>(low[i]);
    x[2 * i] = two.x, x[2 * i + 1] = two.y;
  }
}

__device__ inline float element_of(const View& v, std::int64_t at) {
  if (!v.half) return static_cast<const float*>(v.data)[at];
  return v.f16 ? __half2float(static_cast<const __half*>(v.data)[at])
               : __bfloat162float(static_cast<const __nv_bfloat16*>(v.data)[at]);
}

template <int V>
__device__ inline void load(const View& v, std::int64_t row, std::int64_t column, float (&x)[V]) {
  if constexpr (V == kVector) {
    unpack(fetch(v, row, column), v, x);
  } else {
    const std::int64_t at = row * v.stride + column;
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] = element_of(v, at + i);
  }
}

template <class H, int V>
__device__ inline void store_half(const View& v, std::int64_t at, const float (&x)[V]) {
  H* to = static_cast<H*>(v.data) + at;
  if constexpr (V == kVector) {
    *reinterpret_cast<uint4*>(to) = {pack<H>(x[0], x[1]), pack<H>(x[2], x[3]), pack<H>(x[4], x[5]),
                                     pack<H>(x[6], x[7])};
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i)
      if constexpr (std::is_same_v<H, __half>)
        to[i] = __float2half_rn(x[i]);
      else
        to[i] = __float2bfloat16_rn(x[i]);
  }
}

template <int V>
__device__ inline void store(const View& v, std::int64_t row, std::int64_t column, const float (&x)[V]) {
  const std::int64_t at = row * v.stride + column;
  if (v.f16) {
    store_half<__half>(v, at, x);
  } else if (v.half) {
    store_half<__nv_bfloat16>(v, at, x);
  } else {
    auto* to = static_cast<float*>(v.data) + at;
    if constexpr (V == kVector) {
      reinterpret_cast<float4*>(to)[0] = {x[0], x[1], x[2], x[3]};
      reinterpret_cast<float4*>(to)[1] = {x[4], x[5], x[6], x[7]};
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) to[i] = x[i];
    }
  }
}

// Stores or adds to a gradient, as the planner requires. Does nothing if the gradient is absent.
template <int V>
__device__ inline void put(const View& v, std::int64_t row, std::int64_t column, float (&x)[V], bool add) {
  if (!v) return;
  if (add) {
    float before[V];
    load(v, row, column, before);
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] += before[i];
  }
  store(v, row, column, x);
}

__device__ inline float load_one(const View& v, std::int64_t row, std::int64_t column) {
  float x[1];
  load(v, row, column, x);
  return x[0];
}
__device__ inline void store_one(const View& v, std::int64_t row, std::int64_t column, float value) {
  const float x[1] = {value};
  store(v, row, column, x);
}

// A vector that is absent (1), one shared value, or one value per column.
template <int V>
__device__ inline void load_scale(const View& v, std::int64_t row, std::int64_t column, float (&x)[V]) {
  if (v && v.cols > 1) return load(v, row, column, x);
  const float shared = v ? load_one(v, row, 0) : 1.0f;
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = shared;
}

// A butterfly reduction: every lane gets the sum, in a fixed order.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}
__device__ inline double warp_sum(double x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// Whether all tensors can be accessed 8 columns at a time. Vectors of one value are read as a
// scalar and always fit.
inline bool vectorized(const Tensor& rows, std::initializer_list<Tensor> others) {
  const auto fits = [](const Tensor& t) {
    return t.cols % kVector == 0 && (t.rows <= 1 || t.stride % kVector == 0) &&
           reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0;
  };
  for (const Tensor& other : others)
    if (other && other.cols != 1 && !fits(other)) return false;
  return fits(rows);
}

inline unsigned blocks_for(std::int64_t items, std::int64_t each) {
  const std::int64_t blocks = (items + each - 1) / each;
  if (blocks > 0x7FFFFFFF) refuse("expected a launch of at most 2147483647 blocks", blocks);
  return static_cast<unsigned>(blocks);
}

template <int V, class Body>
__global__ void __launch_bounds__(kThreads)
    each_pack(std::int64_t packs, std::uint32_t packs_a_row, Body body) {
  const std::int64_t pack = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (pack >= packs) return;
  if (packs < (std::int64_t{1} << 32)) {  // 32-bit division is many times faster
    const std::uint32_t p = static_cast<std::uint32_t>(pack), row = p / packs_a_row;
    body(std::int64_t{row}, static_cast<std::int32_t>(p - row * packs_a_row) * V);
  } else {
    const std::int64_t row = pack / packs_a_row;
    body(row, static_cast<std::int32_t>(pack - row * packs_a_row) * V);
  }
}

// body(row, column) for every V columns of [rows, cols].
template <int V, class Body>
void for_each_pack(const char* name, cudaStream_t stream, std::int64_t rows, std::int64_t cols, Body body) {
  const std::int64_t packs = rows * (cols / V);
  if (packs == 0) return;
  each_pack<V><<<blocks_for(packs, kThreads), kThreads, 0, stream>>>(
      packs, static_cast<std::uint32_t>(cols / V), body);
  launched(name);
}

inline constexpr int kRowsPerBlock = 4;

template <class Body>
__global__ void __launch_bounds__(kRowsPerBlock* kWarp) each_row(std::int64_t rows, Body body) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kWarp;
  if (row < rows) body(row, static_cast<std::int32_t>(threadIdx.x % kWarp));
}

// Calls body(row, lane) with one warp per row.
template <class Body>
void for_each_row(const char* name, cudaStream_t stream, std::int64_t rows, Body body) {
  if (rows == 0) return;
  each_row<<<blocks_for(rows, kRowsPerBlock), kRowsPerBlock * kWarp, 0, stream>>>(rows, body);
  launched(name);
}

}  // namespace thimble::cuda
