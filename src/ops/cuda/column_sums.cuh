// Sums over rows, for gradients of vectors, and sums over the threads of a block. Deterministic.
//
// Rows are split into blocks at positions that depend only on the number of rows. A thread block
// sums its rows into a partial row; the partial rows are then added in order.
#pragma once

#include <algorithm>

#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

// The split of rows into blocks; it depends only on the number of rows.
struct SumBlocks {
  // kMaxBlocks: four blocks for each of an H200's 132 multiprocessors.
  static constexpr std::int64_t kMaxBlocks = 528, kMinRows = 16;

  explicit SumBlocks(std::int64_t rows)
      : rows_each(std::max(kMinRows, (rows + kMaxBlocks - 1) / kMaxBlocks)),
        count((rows + rows_each - 1) / rows_each) {}

  std::int64_t rows_each, count;
};

// Scratch bytes for `sums` sums of `cols` columns over at most `rows` rows, and one row of totals.
// Fewer rows may need more blocks.
inline std::int64_t column_sum_bytes(std::int64_t rows, std::int64_t cols, int sums) {
  const std::int64_t max_blocks =
      std::min(SumBlocks::kMaxBlocks, (rows + SumBlocks::kMinRows - 1) / SumBlocks::kMinRows);
  return (max_blocks + 1) * sums * cols * kFloatBytes;
}

inline constexpr int kPartialLanes = 32;  // partial rows added in parallel

// The rows of one thread.
struct RowsOfThread {
  std::int64_t begin, end;
  int step;

  template <class Body>
  __device__ void each(Body body) const {
    for (std::int64_t row = begin; row < end; row += step) body(row);
  }
};

// A block has complete rows, or as many columns as it has threads, and as many rows as fit, so that
// concurrent reads are adjacent in memory.
template <int V>
dim3 sum_threads(std::int64_t cols) {
  const std::int64_t packs = (cols + V - 1) / V;
  const auto across = static_cast<unsigned>(packs < kThreads ? packs : kThreads);
  return dim3(across, kThreads / across);
}

template <int V, int S, class Body>
__global__ void __launch_bounds__(kThreads)
    partial_sums(std::int64_t rows, std::int64_t rows_each, std::int32_t cols, Body body, float* partials) {
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * V;
  const std::int64_t begin = std::int64_t{blockIdx.y} * rows_each;
  const std::int64_t end = begin + rows_each < rows ? begin + rows_each : rows;
  float sums[S][V] = {};
  if (column < cols) body(RowsOfThread{begin + threadIdx.y, end, static_cast<int>(blockDim.y)}, column, sums);
  if (!partials) return;
  __shared__ float shared[S * V][kThreads];
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
#pragma unroll
  for (int s = 0; s < S; ++s)
#pragma unroll
    for (int i = 0; i < V; ++i) shared[s * V + i][thread] = sums[s][i];
  __syncthreads();
  if (threadIdx.y != 0 || column >= cols) return;
#pragma unroll
  for (int s = 0; s < S; ++s)
#pragma unroll
    for (int i = 0; i < V; ++i) {
      float total = 0;
      for (unsigned lane = 0; lane < blockDim.y; ++lane)
        total += shared[s * V + i][lane * blockDim.x + threadIdx.x];
      partials[(std::int64_t{blockIdx.y} * S + s) * cols + column + i] = total;
    }
}

// Adds the total of each column to a gradient of that width, or stores it in `totals`.
template <int S>
struct Gradients {
  View view[S];

  bool requested() const {
    for (const View& gradient : view)
      if (gradient.data) return true;
    return false;
  }
};
template <int S>
__global__ void __launch_bounds__(kWarp* kPartialLanes)
    add_partials(const float* partials, std::int64_t blocks, std::int32_t cols, Gradients<S> gradients,
                 float* totals) {
  const int column = static_cast<int>(blockIdx.x * kWarp + threadIdx.x), s = blockIdx.y;
  float sum = 0;
  if (column < cols) {
#pragma unroll 4
    for (std::int64_t b = threadIdx.y; b < blocks; b += kPartialLanes)
      sum += partials[(b * S + s) * cols + column];
  }
  __shared__ float shared[kPartialLanes][kWarp];
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= cols) return;
  float total = 0;
#pragma unroll
  for (int lane = 0; lane < kPartialLanes; ++lane) total += shared[lane][threadIdx.x];
  const View& gradient = gradients.view[s];
  if (!gradient) return;
  if (gradient.cols == cols)
    store_one(gradient, 0, column, load_one(gradient, 0, column) + total);
  else
    totals[s * cols + column] = total;
}

// Sums the totals of all columns into one shared value, with one warp.
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

// gradients[s] += the sum of `blocks` partial rows [blocks][S][cols], which are followed by space
// for [S][cols]. A gradient of one column gets the sum of all columns; an absent gradient is
// skipped.
template <int S>
void add_partial_rows(const char* name, cudaStream_t stream, float* partials, std::int64_t blocks,
                      std::int32_t cols, const Gradients<S>& gradients) {
  float* totals = partials + blocks * S * cols;
  add_partials<S><<<dim3(blocks_for(cols, kWarp), S), dim3(kWarp, kPartialLanes), 0, stream>>>(
      partials, blocks, cols, gradients, totals);
  launched(name);
  bool shared = false;
  for (const View& gradient : gradients.view) shared |= gradient.data != nullptr && gradient.cols != cols;
  if (!shared) return;
  add_shared<S><<<S, kWarp, 0, stream>>>(totals, cols, gradients);
  launched(name);
}

// Calls body(rows, column, sums) for all rows and every V columns; then gradients[s] += what body
// added to sums[s][0 .. V). body may also write the gradients of its rows.
template <int V, int S, class Body>
void for_columns_with_sums(const char* name, cudaStream_t stream, std::int64_t rows, std::int64_t cols,
                           void* scratch, const Gradients<S>& gradients, Body body) {
  if (rows == 0 || cols == 0) return;
  const SumBlocks blocks(rows);
  const auto width = static_cast<std::int32_t>(cols);
  auto* partials = gradients.requested() ? static_cast<float*>(scratch) : nullptr;
  const dim3 threads = sum_threads<V>(cols);
  partial_sums<V, S>
      <<<dim3(blocks_for(cols, std::int64_t{threads.x} * V), static_cast<unsigned>(blocks.count)), threads, 0,
         stream>>>(rows, blocks.rows_each, width, body, partials);
  launched(name);
  if (partials) add_partial_rows<S>(name, stream, partials, blocks.count, width, gradients);
}

template <int V, int S, class Term>
struct SumTerms {
  Term term;

  __device__ void operator()(const RowsOfThread& rows, int column, float (&sums)[S][V]) const {
    rows.each([&](std::int64_t row) { term(row, column, sums); });
  }
};

// gradients[s] += the sum over rows of what term(row, column, sums) adds to sums[s][0 .. V).
template <int V, int S, class Term>
void add_column_sums(const char* name, cudaStream_t stream, std::int64_t rows, std::int64_t cols,
                     void* scratch, const Gradients<S>& gradients, Term term) {
  for_columns_with_sums<V, S>(name, stream, rows, cols, scratch, gradients, SumTerms<V, S, Term>{term});
}

// Sums over the threads of a block, in f64 and in a fixed order; valid in thread 0.
__device__ inline double block_sum(double mine) {
  __shared__ double of_warp[kThreads / kWarp];
  mine = warp_sum(mine);
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = mine;
  __syncthreads();
  double sum = 0;
  if (threadIdx.x == 0)
    for (double part : of_warp) sum += part;
  return sum;
}

}  // namespace thimble::cuda
