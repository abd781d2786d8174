// Sums over rows, for the gradients of vectors: the same bits every time.
//
// Rows are cut into blocks at places that depend on their number alone. A block of threads sums its rows into a partial
// row; the partial rows are then added in order.
#pragma once

#include "ops/cuda/rows.cuh"
#include "ops/cuda/scratch.h"

namespace thimble::cuda {

inline constexpr int kSumLanes = 8;  // rows that a block of threads sums side by side

template <int V, int S, class Term>
__global__ void __launch_bounds__(kWarp* kSumLanes)
    partial_sums(std::int64_t rows, std::int64_t rows_each, std::int32_t cols, Term term, float* partials) {
  const int column = static_cast<int>(blockIdx.x * kWarp + threadIdx.x) * V;
  const std::int64_t begin = std::int64_t{blockIdx.y} * rows_each;
  const std::int64_t end = begin + rows_each < rows ? begin + rows_each : rows;
  float sums[S][V] = {};
  if (column < cols)
    for (std::int64_t row = begin + threadIdx.y; row < end; row += kSumLanes) term(row, column, sums);
  __shared__ float shared[kSumLanes][S][V][kWarp];
#pragma unroll
  for (int s = 0; s < S; ++s)
#pragma unroll
    for (int i = 0; i < V; ++i) shared[threadIdx.y][s][i][threadIdx.x] = sums[s][i];
  __syncthreads();
  if (threadIdx.y != 0 || column >= cols) return;
#pragma unroll
  for (int s = 0; s < S; ++s)
#pragma unroll
    for (int i = 0; i < V; ++i) {
      float total = 0;
      for (int lane = 0; lane < kSumLanes; ++lane) total += shared[lane][s][i][threadIdx.x];
      partials[(std::int64_t{blockIdx.y} * S + s) * cols + column + i] = total;
    }
}

// The total of each column: added to a gradient of that width, or kept in `totals`.
template <int S>
struct Gradients {
  View view[S];
};
template <int S>
__global__ void __launch_bounds__(kWarp* kSumLanes)
    add_partials(const float* partials, std::int64_t blocks, std::int32_t cols, Gradients<S> gradients,
                 float* totals) {
  const int column = static_cast<int>(blockIdx.x * kWarp + threadIdx.x), s = blockIdx.y;
  float sum = 0;
  if (column < cols)
    for (std::int64_t b = threadIdx.y; b < blocks; b += kSumLanes)
      sum += partials[(b * S + s) * cols + column];
  __shared__ float shared[kSumLanes][kWarp];
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= cols) return;
  float total = 0;
  for (int lane = 0; lane < kSumLanes; ++lane) total += shared[lane][threadIdx.x];
  const View& gradient = gradients.view[s];
  if (!gradient) return;
  if (gradient.cols == cols)
    store_one(gradient, 0, column, load_one(gradient, 0, column) + total);
  else
    totals[s * cols + column] = total;
}

// All columns into one shared value, by one warp.
template <int S>
__global__ void add_shared(const float* totals, std::int32_t cols, Gradients<S> gradients) {
  const int s = blockIdx.x;
  const View& gradient = gradients.view[s];
  if (!gradient || gradient.cols == cols) return;
  double sum = 0;
  for (int column = threadIdx.x; column < cols; column += kWarp)
    sum += static_cast<double>(totals[s * cols + column]);
  sum = warp_sum(sum);
  if (threadIdx.x == 0) store_one(gradient, 0, 0, load_one(gradient, 0, 0) + static_cast<float>(sum));
}

// gradients[s] += sum over rows of what term(row, column, sums) adds to sums[s][0 .. V). A gradient of one column takes
// the sum of all; an absent one is left out.
template <int V, int S, class Term>
void add_column_sums(const char* name, cudaStream_t stream, std::int64_t rows, std::int64_t cols,
                     void* scratch, const Gradients<S>& gradients, Term term) {
  if (rows == 0 || cols == 0) return;
  const SumBlocks blocks(rows);
  const auto width = static_cast<std::int32_t>(cols);
  auto* partials = static_cast<float*>(scratch);
  float* totals = partials + blocks.count * S * cols;
  const dim3 threads(kWarp, kSumLanes);
  partial_sums<V, S>
      <<<dim3(blocks_for(cols, kWarp * V), static_cast<unsigned>(blocks.count)), threads, 0, stream>>>(
          rows, blocks.rows_each, width, term, partials);
  launched(name);
  add_partials<S><<<dim3(blocks_for(cols, kWarp), S), threads, 0, stream>>>(partials, blocks.count, width,
                                                                            gradients, totals);
  launched(name);
  bool shared = false;
  for (const View& gradient : gradients.view) shared |= gradient.data != nullptr && gradient.cols != width;
  if (!shared) return;
  add_shared<S><<<S, kWarp, 0, stream>>>(totals, width, gradients);
  launched(name);
}

}  // namespace thimble::cuda
