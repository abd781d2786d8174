// bf16 rows that fit into the registers of a warp. Each row is read only once, with all loads in
// flight together. Its contributions to the gradients of vectors are summed in the same pass.
//
// Lane i has the columns [8 i, 8 i + 8) of every 256; P such packs cover rows of up to 256 P
// columns. Columns past the end of the row are zero and not stored.
#pragma once

#include <type_traits>

#include "ops/cuda/column_sums.cuh"

namespace thimble::cuda {

inline constexpr int kPackColumns = kWarp * kVector;
inline constexpr int kRowWarps = kThreads / kWarp;

template <int P>
struct RawRow {
  uint4 pack[P];
};

template <int P>
struct Row {
  float at[P][kVector];
};

__device__ inline int column_of(int pack) {
  return pack * kPackColumns + static_cast<int>(threadIdx.x % kWarp) * kVector;
}

// Loads a bf16 row; zeros if the tensor is absent.
template <int P>
__device__ inline RawRow<P> fetch_row(const View& v, std::int64_t row) {
  RawRow<P> raw = {};
  const auto* from = static_cast<const __nv_bfloat16*>(v.data) + row * v.stride;
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (v && column_of(p) < v.cols) raw.pack[p] = *reinterpret_cast<const uint4*>(from + column_of(p));
  return raw;
}

template <int P>
__device__ inline Row<P> unpack_row(const RawRow<P>& raw) {
  Row<P> x;
#pragma unroll
  for (int p = 0; p < P; ++p) unpack({raw.pack[p], {}}, true, x.at[p]);
  return x;
}

// Stores x as bf16 and replaces x by the stored, rounded values.
template <int P>
__device__ inline void store_row(const View& v, std::int64_t row, Row<P>& x) {
  auto* to = static_cast<__nv_bfloat16*>(v.data) + row * v.stride;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const float(&y)[kVector] = x.at[p];
    const uint4 packed = {pack(y[0], y[1]), pack(y[2], y[3]), pack(y[4], y[5]), pack(y[6], y[7])};
    if (column_of(p) < v.cols) *reinterpret_cast<uint4*>(to + column_of(p)) = packed;
    unpack({packed, {}}, true, x.at[p]);
  }
}

// A bf16 gradient. If it is added to, its previous contents are fetched with the other inputs of
// the row. Does nothing if absent.
template <int P>
struct GradientRow {
  View view;
  bool add;

  __device__ RawRow<P> fetch(std::int64_t row) const {
    if (add) return fetch_row<P>(view, row);
    return {};
  }
  __device__ void put(std::int64_t row, Row<P>& x, const RawRow<P>& before) const {
    if (!view) return;
    if (add) {
      const Row<P> earlier = unpack_row(before);
#pragma unroll
      for (int p = 0; p < P; ++p)
#pragma unroll
        for (int i = 0; i < kVector; ++i) x.at[p][i] += earlier.at[p][i];
    }
    store_row(view, row, x);
  }
};

// An f32 vector that is absent (1), one shared value, or one value per column.
template <int P>
__device__ inline Row<P> load_scale_row(const View& v) {
  Row<P> x = {};
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (!v || v.cols == 1 || column_of(p) < v.cols) load_scale(v, 0, column_of(p), x.at[p]);
  return x;
}

template <int P>
__device__ inline float row_dot(const Row<P>& x, const Row<P>& y) {
  float sum = 0;
#pragma unroll
  for (int p = 0; p < P; ++p)
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += x.at[p][i] * y.at[p][i];
  return warp_sum(sum);
}

// The rows of one warp: each(row_body) calls row_body for every row.
struct RowsOfWarp {
  std::int64_t begin, end;

  template <class Body>
  __device__ void each(Body body) const {
    for (std::int64_t row = begin; row < end; row += kRowWarps) body(row);
  }
};

template <int P, int S>
struct RowSums {
  Row<P> of[S];
};

// Stores the sum over the warps of a block, added in order.
template <int P>
__device__ inline void store_block_sum(const Row<P>& mine, std::int32_t cols, float* partial) {
  __shared__ float shared[kRowWarps][P * kPackColumns];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  __syncthreads();
#pragma unroll
  for (int p = 0; p < P; ++p)
#pragma unroll
    for (int i = 0; i < kVector; ++i) shared[warp][column_of(p) + i] = mine.at[p][i];
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x); column < cols; column += kThreads) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kRowWarps; ++w) sum += shared[w][column];
    partial[column] = sum;
  }
}

template <int P, int S, class Body>
__global__ void __launch_bounds__(kThreads, P <= 2 ? 2 : 1)
    rows_with_sums(std::int64_t rows, std::int64_t rows_each, std::int32_t cols, Body body, float* partials) {
  const std::int64_t begin = std::int64_t{blockIdx.x} * rows_each;
  const std::int64_t end = begin + rows_each < rows ? begin + rows_each : rows;
  RowSums<P, S> sums = {};
  body(RowsOfWarp{begin + threadIdx.x / kWarp, end}, sums);
  if (!partials) return;
#pragma unroll
  for (int s = 0; s < S; ++s)
    store_block_sum(sums.of[s], cols, partials + (std::int64_t{blockIdx.x} * S + s) * cols);
}

// Calls body(rows, sums) in every warp; then gradients[s] += the total of sums.of[s].
template <int P, int S, class Body>
void for_rows_with_sums(const char* name, cudaStream_t stream, std::int64_t rows, std::int64_t cols,
                        void* scratch, const Gradients<S>& gradients, Body body) {
  if (rows == 0) return;
  const SumBlocks blocks(rows);
  const auto width = static_cast<std::int32_t>(cols);
  auto* partials = gradients.requested() ? static_cast<float*>(scratch) : nullptr;
  rows_with_sums<P, S><<<static_cast<unsigned>(blocks.count), kThreads, 0, stream>>>(rows, blocks.rows_each,
                                                                                     width, body, partials);
  launched(name);
  if (partials) add_partial_rows<S>(name, stream, partials, blocks.count, width, gradients);
}

template <int P, class Body>
__global__ void __launch_bounds__(kRowsPerBlock* kWarp) each_row_once(std::int64_t rows, Body body) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kWarp;
  if (row < rows) body(row);
}

// Calls body(row) with one warp per row.
template <int P, class Body>
void for_each_row_once(const char* name, cudaStream_t stream, std::int64_t rows, Body body) {
  if (rows == 0) return;
  each_row_once<P><<<blocks_for(rows, kRowsPerBlock), kRowsPerBlock * kWarp, 0, stream>>>(rows, body);
  launched(name);
}

// Calls call(packs) with a compile-time number of packs that covers a row. Returns false if the
// rows are too long, not bf16, or not aligned.
template <class Call>
bool with_packs(std::initializer_list<Tensor> rows, std::initializer_list<Tensor> vectors, Call call) {
  const Tensor& first = *rows.begin();
  const auto packs = (first.cols + kPackColumns - 1) / kPackColumns;
  if (packs > 4 || !vectorized(first, rows) || !vectorized(first, vectors)) return false;
  for (const Tensor& row : rows)
    if (row && row.dtype != DType::bf16) return false;
  if (packs <= 1)
    call(std::integral_constant<int, 1>{});
  else if (packs == 2)
    call(std::integral_constant<int, 2>{});
  else
    call(std::integral_constant<int, 4>{});
  return true;
}

// An element of residual_mix. Explicit rounding gives the same bits in every kernel.
__device__ inline float mixed(float m0, float x, float m1, float x0) {
  return __fmaf_rn(m0, x, __fmul_rn(m1, x0));
}

}  // namespace thimble::cuda
