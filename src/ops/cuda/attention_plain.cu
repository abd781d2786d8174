#include "ops/cuda/attention.h"

namespace thimble::cuda {

namespace {

// 16 x 16 threads. Of a 64 x 64 tile of scores thread (y, x) has rows 4y .. 4y + 3 and columns x, x + 16, ...; of a
// 64 x D tile of results the same rows and columns. A row's 16 threads are half a warp.
constexpr int kSide = 16, kEach = 4;
static_assert(kQueryTile == kSide * kEach && kKeyTile == kSide * kEach);
constexpr int kLargestHead = 128;

struct Place {
  int x = static_cast<int>(threadIdx.x) % kSide, y = static_cast<int>(threadIdx.x) / kSide;
  __device__ int row(int i) const { return y * kEach + i; }
  __device__ int column(int j) const { return x + j * kSide; }
};

// Rows of D floats at an odd pitch: no two threads of a row meet in a bank.
struct Tile {
  float* data;
  int pitch;
  __device__ float& at(int row, int column) const { return data[row * pitch + column]; }
};

__host__ __device__ constexpr int tile_floats(int cols) {
  return kKeyTile * (cols | 1);
}
__device__ Tile take(float*& shared, int cols) {
  const Tile tile{shared, cols | 1};
  shared += tile_floats(cols);
  return tile;
}

__device__ void fetch(const Tile& tile, const View& rows, std::int64_t first, std::int64_t column, int size) {
  for (int i = threadIdx.x; i < kKeyTile * size; i += kThreads) {
    const int r = i / size, d = i % size;
    tile.at(r, d) = first + r < rows.rows ? load_one(rows, first + r, column + d) : 0.0f;
  }
}

// sums[i][j] = a's row . b's row: scores.
__device__ void dots(const Place& place, const Tile& a, const Tile& b, int size,
                     float (&sums)[kEach][kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) sums[i][j] = 0;
  for (int d = 0; d < size; ++d) {
    float left[kEach], right[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) left[i] = a.at(place.row(i), d), right[i] = b.at(place.column(i), d);
#pragma unroll
    for (int i = 0; i < kEach; ++i)
#pragma unroll
      for (int j = 0; j < kEach; ++j) sums[i][j] += left[i] * right[j];
  }
}

// results[i][k] += sum over c of weights(row(i), c) tile(c, column(k)); transposed: weights(c, row(i)).
template <int W, bool transposed>
__device__ void accumulate(const Place& place, const Tile& weights, const Tile& tile, int size,
                           float (&results)[kEach][W]) {
  for (int c = 0; c < kKeyTile; ++c) {
    float weight[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      weight[i] = transposed ? weights.at(c, place.row(i)) : weights.at(place.row(i), c);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      if (place.column(k) >= size) continue;
      const float value = tile.at(c, place.column(k));
#pragma unroll
      for (int i = 0; i < kEach; ++i) results[i][k] += weight[i] * value;
    }
  }
}

template <int W>
__device__ void put_results(const Place& place, const View& to, std::int64_t first, std::int64_t column,
                            int size, float (&results)[kEach][W], bool add) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const std::int64_t row = first + place.row(i);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      if (row >= to.rows || place.column(k) >= size) continue;
      float result[1] = {results[i][k]};
      put(to, row, column + place.column(k), result, add);
    }
  }
}

__device__ float half_warp_max(float x) {
#pragma unroll
  for (int step = kSide / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
__device__ float half_warp_sum(float x) {
#pragma unroll
  for (int step = kSide / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

template <int W>
__global__ void __launch_bounds__(kThreads) forward_tiles(AttentionRows rows, View y, View lse) {
  extern __shared__ float memory[];
  float* shared = memory;
  const int size = rows.size, head = blockIdx.y;
  const Tile q = take(shared, size), k = take(shared, size), v = take(shared, size),
             weights = take(shared, kKeyTile);
  const std::int64_t query = std::int64_t{gridDim.x - 1 - blockIdx.x} * kQueryTile;  // long ones first
  const std::int64_t kv_column = std::int64_t{head / rows.group} * size;
  const Place place;
  fetch(q, rows.q, query, std::int64_t{head} * size, size);

  std::int64_t n[kEach], first[kEach];
  float highest[kEach], sum[kEach], results[kEach][W] = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    n[i] = query + place.row(i);
    first[i] = n[i] < rows.rows ? rows.first[n[i]] : n[i] + 1;  // beyond the batch: sees nothing
    highest[i] = -INFINITY, sum[i] = 0;
  }
  const std::int64_t end = query + kQueryTile < rows.rows ? query + kQueryTile : rows.rows;
  for (std::int64_t key = rows.first_key_tile(query); key < end; key += kKeyTile) {
    __syncthreads();
    fetch(k, rows.k, key, kv_column, size);
    fetch(v, rows.v, key, kv_column, size);
    __syncthreads();
    float score[kEach][kEach];
    dots(place, q, k, size, score);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      bool visible[kEach];
      float top = -INFINITY;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const std::int64_t m = key + place.column(j);
        visible[j] = m >= first[i] && m <= n[i];
        score[i][j] *= rows.scale;
        if (visible[j]) top = fmaxf(top, score[i][j]);
      }
      const float now = fmaxf(highest[i], half_warp_max(top));
      // exp(-inf - -inf) would be NaN where nothing was collected yet.
      const float keep = highest[i] == -INFINITY ? 0.0f : expf(highest[i] - now);
      float added = 0;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const float weight = visible[j] ? expf(score[i][j] - now) : 0.0f;
        weights.at(place.row(i), place.column(j)) = weight;
        added += weight;
      }
      sum[i] = sum[i] * keep + half_warp_sum(added);
      highest[i] = now;
#pragma unroll
      for (int w = 0; w < W; ++w) results[i][w] *= keep;
    }
    __syncwarp();  // a row of weights is written and read by one half of a warp
    accumulate<W, false>(place, weights, v, size, results);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int w = 0; w < W; ++w) results[i][w] /= sum[i];
    if (place.x == 0 && n[i] < rows.rows) store_one(lse, n[i], head, highest[i] + logf(sum[i]));
  }
  put_results(place, y, query, std::int64_t{head} * size, size, results, false);
}

// p and ds = p (dp - delta) scale of one tile, from q.k in `score` and dy.v in `slope`.
__device__ void score_gradients(const Place& place, const AttentionRows& rows,
                                const AttentionGradients& gradients, int head, std::int64_t query,
                                std::int64_t key, float (&score)[kEach][kEach],
                                float (&slope)[kEach][kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const std::int64_t n = query + place.row(i);
    const bool there = n < rows.rows;
    const std::int64_t first = there ? rows.first[n] : n + 1;
    const float lse = there ? load_one(gradients.lse, n, head) : 0.0f;
    const float delta = there ? gradients.delta[n * gradients.heads + head] : 0.0f;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const std::int64_t m = key + place.column(j);
      const bool visible = m >= first && m <= n;
      score[i][j] = visible ? expf(score[i][j] * rows.scale - lse) : 0.0f;
      slope[i][j] = visible ? score[i][j] * (slope[i][j] - delta) * rows.scale : 0.0f;
    }
  }
}

__device__ void write_tile(const Place& place, const Tile& tile, const float (&values)[kEach][kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) tile.at(place.row(i), place.column(j)) = values[i][j];
}

// Keys stay, queries of all heads of the group pass by.
template <int W>
__global__ void __launch_bounds__(kThreads) key_gradients(AttentionRows rows, AttentionGradients gradients) {
  extern __shared__ float memory[];
  float* shared = memory;
  const int size = rows.size, kv_head = blockIdx.y;
  const Tile q = take(shared, size), dy = take(shared, size), k = take(shared, size), v = take(shared, size);
  const Tile between = take(shared, kKeyTile);
  const std::int64_t key = std::int64_t{blockIdx.x} * kKeyTile, kv_column = std::int64_t{kv_head} * size;
  const std::int64_t last_key = (key + kKeyTile < rows.rows ? key + kKeyTile : rows.rows) - 1;
  const Place place;
  fetch(k, rows.k, key, kv_column, size);
  fetch(v, rows.v, key, kv_column, size);
  float dk[kEach][W] = {}, dv[kEach][W] = {};
  for (int g = 0; g < rows.group; ++g) {
    const int head = kv_head * rows.group + g;
    // `first` never decreases: once a tile's first query looks past these keys, all later ones do.
    for (std::int64_t query = key; query < rows.rows && rows.first[query] <= last_key; query += kQueryTile) {
      __syncthreads();
      fetch(q, rows.q, query, std::int64_t{head} * size, size);
      fetch(dy, gradients.dy, query, std::int64_t{head} * size, size);
      __syncthreads();
      float score[kEach][kEach], slope[kEach][kEach];
      dots(place, q, k, size, score);
      dots(place, dy, v, size, slope);
      score_gradients(place, rows, gradients, head, query, key, score, slope);
      write_tile(place, between, score);
      __syncthreads();
      accumulate<W, true>(place, between, dy, size, dv);
      __syncthreads();
      write_tile(place, between, slope);
      __syncthreads();
      accumulate<W, true>(place, between, q, size, dk);
    }
  }
  if (gradients.dk) put_results(place, gradients.dk, key, kv_column, size, dk, gradients.add_dk);
  if (gradients.dv) put_results(place, gradients.dv, key, kv_column, size, dv, gradients.add_dv);
}

// Queries stay, keys pass by.
template <int W>
__global__ void __launch_bounds__(kThreads)
    query_gradients(AttentionRows rows, AttentionGradients gradients) {
  extern __shared__ float memory[];
  float* shared = memory;
  const int size = rows.size, head = blockIdx.y;
  const Tile q = take(shared, size), dy = take(shared, size), k = take(shared, size), v = take(shared, size);
  const Tile between = take(shared, kKeyTile);
  const std::int64_t query = std::int64_t{gridDim.x - 1 - blockIdx.x} * kQueryTile;
  const std::int64_t kv_column = std::int64_t{head / rows.group} * size;
  const Place place;
  fetch(q, rows.q, query, std::int64_t{head} * size, size);
  fetch(dy, gradients.dy, query, std::int64_t{head} * size, size);
  float dq[kEach][W] = {};
  const std::int64_t end = query + kQueryTile < rows.rows ? query + kQueryTile : rows.rows;
  for (std::int64_t key = rows.first_key_tile(query); key < end; key += kKeyTile) {
    __syncthreads();
    fetch(k, rows.k, key, kv_column, size);
    fetch(v, rows.v, key, kv_column, size);
    __syncthreads();
    float score[kEach][kEach], slope[kEach][kEach];
    dots(place, q, k, size, score);
    dots(place, dy, v, size, slope);
    score_gradients(place, rows, gradients, head, query, key, score, slope);
    write_tile(place, between, slope);
    __syncwarp();
    accumulate<W, false>(place, between, k, size, dq);
  }
  put_results(place, gradients.dq, query, std::int64_t{head} * size, size, dq, gradients.add_dq);
}

// body(W) for the number of columns a thread has of a head.
template <class Body>
void by_width(std::int64_t size, Body body) {
  if (size > kLargestHead) refuse("[attention] expected a head size of at most 128", size);
  if (size <= kSide) return body(std::integral_constant<int, 1>{});
  if (size <= 2 * kSide) return body(std::integral_constant<int, 2>{});
  if (size <= 4 * kSide) return body(std::integral_constant<int, 4>{});
  body(std::integral_constant<int, 8>{});
}

template <class Kernel, class... Args>
void run(const char* name, cudaStream_t stream, Kernel kernel, std::int64_t rows, std::int64_t heads,
         int tiles, std::int64_t size, const Args&... args) {
  const int head = static_cast<int>(size);
  const std::size_t bytes =
      sizeof(float) * static_cast<std::size_t>(tiles * tile_floats(head) + tile_floats(kKeyTile));
  checked(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
          name);
  kernel<<<dim3(blocks_for(rows, kQueryTile), static_cast<unsigned>(heads)), kThreads, bytes, stream>>>(
      args...);
  launched(name);
}

}  // namespace

void plain_attention_forward(cudaStream_t stream, const Attention& op) {
  by_width(op.head_size(), [&](auto width) {
    run("attention", stream, forward_tiles<decltype(width)::value>, op.q.rows, op.at.heads, 3, op.head_size(),
        AttentionRows(op), View(op.y), View(op.lse));
  });
}

void plain_attention_backward(cudaStream_t stream, const Attention& op, const float* delta) {
  const AttentionRows rows(op);
  const AttentionGradients gradients(op, delta);
  by_width(op.head_size(), [&](auto width) {
    constexpr int W = decltype(width)::value;
    if (op.dk || op.dv)
      run("attention keys backward", stream, key_gradients<W>, op.q.rows, op.at.kv_heads, 4, op.head_size(),
          rows, gradients);
    if (op.dq)
      run("attention queries backward", stream, query_gradients<W>, op.q.rows, op.at.heads, 4, op.head_size(),
          rows, gradients);
  });
}

}  // namespace thimble::cuda
