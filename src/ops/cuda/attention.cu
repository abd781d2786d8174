// attention: the choice of kernels (attention.h) and those in plain arithmetic;
// exclusive_attention.
#include "ops/cuda/attention.h"

#include "ops/attention.h"

namespace thimble::cuda {

namespace {

constexpr int kLargestHead = 256, kLargestExclusiveHead = 128;

// Plain arithmetic uses 16 x 16 threads. Thread (y, x) has rows E y .. E y + E - 1 and columns x,
// x + 16, ... of a tile of scores, and likewise of a tile of D columns of results. The 16 threads
// of a row are half a warp. E is 4, for tiles of 64 rows, or 2 for heads of more than 128
// columns, whose tiles of 64 rows do not fit into shared memory.
constexpr int kSide = 16;

template <int E>
struct ThreadLayout {
  static constexpr int kRows = kSide * E;  // of a tile: queries, and keys
  static_assert(kKeyTile % kRows == 0);
  int x = static_cast<int>(threadIdx.x) % kSide, y = static_cast<int>(threadIdx.x) / kSide;
  __device__ int row(int i) const { return y * E + i; }
  __device__ int column(int j) const { return x + j * kSide; }
};

// Rows of D floats with an odd pitch, which avoids bank conflicts between the threads of a row.
struct Tile {
  float* data;
  int pitch;
  __device__ float& at(int row, int column) const { return data[row * pitch + column]; }
};

__host__ __device__ constexpr int tile_floats(int rows, int cols) {
  return rows * (cols | 1);
}
template <int rows>
__device__ Tile take(float*& shared, int cols) {
  const Tile tile{shared, cols | 1};
  shared += tile_floats(rows, cols);
  return tile;
}

template <int tile_rows>
__device__ void fetch(const Tile& tile, const View& rows, std::int64_t first, std::int64_t column, int size) {
  for (int i = threadIdx.x; i < tile_rows * size; i += kThreads) {
    const int r = i / size, d = i % size;
    tile.at(r, d) = first + r < rows.rows ? load_one(rows, first + r, column + d) : 0.0f;
  }
}

// sums[i][j] = row(i) of a . row column(j) of b: scores.
template <int E>
__device__ void dots(const ThreadLayout<E>& layout, const Tile& a, const Tile& b, int size,
                     float (&sums)[E][E]) {
#pragma unroll
  for (int i = 0; i < E; ++i)
#pragma unroll
    for (int j = 0; j < E; ++j) sums[i][j] = 0;
  for (int d = 0; d < size; ++d) {
    float left[E], right[E];
#pragma unroll
    for (int i = 0; i < E; ++i) left[i] = a.at(layout.row(i), d), right[i] = b.at(layout.column(i), d);
#pragma unroll
    for (int i = 0; i < E; ++i)
#pragma unroll
      for (int j = 0; j < E; ++j) sums[i][j] += left[i] * right[j];
  }
}

// results[i][k] += sum over c of weights(row(i), c) tile(c, column(k)); transposed: weights(c,
// row(i)).
template <bool transposed, int E, int W>
__device__ void accumulate(const ThreadLayout<E>& layout, const Tile& weights, const Tile& tile, int size,
                           float (&results)[E][W]) {
  for (int c = 0; c < layout.kRows; ++c) {
    float weight[E];
#pragma unroll
    for (int i = 0; i < E; ++i)
      weight[i] = transposed ? weights.at(c, layout.row(i)) : weights.at(layout.row(i), c);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      if (layout.column(k) >= size) continue;
      const float value = tile.at(c, layout.column(k));
#pragma unroll
      for (int i = 0; i < E; ++i) results[i][k] += weight[i] * value;
    }
  }
}

template <int E, int W>
__device__ void put_results(const ThreadLayout<E>& layout, const View& to, std::int64_t first,
                            std::int64_t column, int size, float (&results)[E][W], bool add) {
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const std::int64_t row = first + layout.row(i);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      if (row >= to.rows || layout.column(k) >= size) continue;
      float result[1] = {results[i][k]};
      put(to, row, column + layout.column(k), result, add);
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

template <int E, int W>
__global__ void __launch_bounds__(kThreads) forward_tiles(AttentionRows rows, View y, View lse) {
  constexpr int kRows = ThreadLayout<E>::kRows;
  extern __shared__ float memory[];
  float* shared = memory;
  const int size = rows.size, head = blockIdx.y;
  const Tile q = take<kRows>(shared, size), k = take<kRows>(shared, size), v = take<kRows>(shared, size),
             weights = take<kRows>(shared, kRows);
  const std::int64_t query = std::int64_t{gridDim.x - 1 - blockIdx.x} * kRows;
  const std::int64_t kv_column = std::int64_t{head / rows.group} * size;
  const ThreadLayout<E> layout;
  fetch<kRows>(q, rows.q, query, std::int64_t{head} * size, size);

  std::int64_t n[E], first[E];
  float highest[E], sum[E], results[E][W] = {};
#pragma unroll
  for (int i = 0; i < E; ++i) {
    n[i] = query + layout.row(i);
    // Past the batch: attends to nothing.
    first[i] = n[i] < rows.rows ? rows.first_key(n[i]) : n[i] + 1;
    highest[i] = -INFINITY, sum[i] = 0;
  }
  const std::int64_t end = query + kRows < rows.rows ? query + kRows : rows.rows;
  for (std::int64_t key = rows.first_key_tile(query); key < end; key += kRows) {
    __syncthreads();
    fetch<kRows>(k, rows.k, key, kv_column, size);
    fetch<kRows>(v, rows.v, key, kv_column, size);
    __syncthreads();
    float score[E][E];
    dots(layout, q, k, size, score);
    rows.softcap.apply(score);
#pragma unroll
    for (int i = 0; i < E; ++i) {
      bool visible[E];
      float top = -INFINITY;
#pragma unroll
      for (int j = 0; j < E; ++j) {
        const std::int64_t m = key + layout.column(j);
        visible[j] = m >= first[i] && m <= n[i];
        score[i][j] *= rows.scale;
        if (visible[j]) top = fmaxf(top, score[i][j]);
      }
      const float now = fmaxf(highest[i], half_warp_max(top));
      // exp(-inf - -inf) would be NaN before the first visible key.
      const float keep = highest[i] == -INFINITY ? 0.0f : expf(highest[i] - now);
      float added = 0;
#pragma unroll
      for (int j = 0; j < E; ++j) {
        const float weight = visible[j] ? expf(score[i][j] - now) : 0.0f;
        weights.at(layout.row(i), layout.column(j)) = weight;
        added += weight;
      }
      sum[i] = sum[i] * keep + half_warp_sum(added);
      highest[i] = now;
#pragma unroll
      for (int w = 0; w < W; ++w) results[i][w] *= keep;
    }
    __syncwarp();  // a row of weights is written and read by the same half of a warp
    accumulate<false>(layout, weights, v, size, results);
  }
#pragma unroll
  for (int i = 0; i < E; ++i) {
#pragma unroll
    for (int w = 0; w < W; ++w) results[i][w] /= sum[i];
    if (layout.x == 0 && n[i] < rows.rows) store_one(lse, n[i], head, highest[i] + logf(sum[i]));
  }
  put_results(layout, y, query, std::int64_t{head} * size, size, results, false);
}

// p and ds = p (dp - delta) scale, times the slope of the cap, of one tile. Inputs are q.k in
// `score` and dy.v in `slope`.
template <int E>
__device__ void score_gradients(const ThreadLayout<E>& layout, const AttentionRows& rows,
                                const AttentionGradients& gradients, int head, std::int64_t query,
                                std::int64_t key, float (&score)[E][E], float (&slope)[E][E]) {
  rows.softcap.apply(score);
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const std::int64_t n = query + layout.row(i);
    const bool valid = n < rows.rows;
    const std::int64_t first = valid ? rows.first_key(n) : n + 1;
    const float lse = valid ? load_one(gradients.lse, n, head) : 0.0f;
    const float delta = valid ? gradients.delta[n * gradients.heads + head] : 0.0f;
#pragma unroll
    for (int j = 0; j < E; ++j) {
      const std::int64_t m = key + layout.column(j);
      const bool visible = m >= first && m <= n;
      const float to_score = rows.scale * rows.softcap.slope(score[i][j]);
      score[i][j] = visible ? expf(score[i][j] * rows.scale - lse) : 0.0f;
      slope[i][j] = visible ? score[i][j] * (slope[i][j] - delta) * to_score : 0.0f;
    }
  }
}

template <int E>
__device__ void write_tile(const ThreadLayout<E>& layout, const Tile& tile, const float (&values)[E][E]) {
#pragma unroll
  for (int i = 0; i < E; ++i)
#pragma unroll
    for (int j = 0; j < E; ++j) tile.at(layout.row(i), layout.column(j)) = values[i][j];
}

// Each block has a tile of keys and loops over the queries of all heads of the group.
template <int E, int W>
__global__ void __launch_bounds__(kThreads) key_gradients(AttentionRows rows, AttentionGradients gradients) {
  constexpr int kRows = ThreadLayout<E>::kRows;
  extern __shared__ float memory[];
  float* shared = memory;
  const int size = rows.size, kv_head = blockIdx.y;
  const Tile q = take<kRows>(shared, size), dy = take<kRows>(shared, size), k = take<kRows>(shared, size),
             v = take<kRows>(shared, size), buffer = take<kRows>(shared, kRows);
  const std::int64_t key = std::int64_t{blockIdx.x} * kRows, kv_column = std::int64_t{kv_head} * size;
  const std::int64_t last_key = (key + kRows < rows.rows ? key + kRows : rows.rows) - 1;
  const ThreadLayout<E> layout;
  fetch<kRows>(k, rows.k, key, kv_column, size);
  fetch<kRows>(v, rows.v, key, kv_column, size);
  float dk[E][W] = {}, dv[E][W] = {};
  for (int g = 0; g < rows.group; ++g) {
    const int head = kv_head * rows.group + g;
    // If the first query of a tile attends to none of these keys, neither do all later queries.
    for (std::int64_t query = key; query < rows.rows && rows.first_key(query) <= last_key; query += kRows) {
      __syncthreads();
      fetch<kRows>(q, rows.q, query, std::int64_t{head} * size, size);
      fetch<kRows>(dy, gradients.dy, query, std::int64_t{head} * size, size);
      __syncthreads();
      float score[E][E], slope[E][E];
      dots(layout, q, k, size, score);
      dots(layout, dy, v, size, slope);
      score_gradients(layout, rows, gradients, head, query, key, score, slope);
      write_tile(layout, buffer, score);
      __syncthreads();
      accumulate<true>(layout, buffer, dy, size, dv);
      __syncthreads();
      write_tile(layout, buffer, slope);
      __syncthreads();
      accumulate<true>(layout, buffer, q, size, dk);
    }
  }
  if (gradients.dk) put_results(layout, gradients.dk, key, kv_column, size, dk, gradients.add_dk);
  if (gradients.dv) put_results(layout, gradients.dv, key, kv_column, size, dv, gradients.add_dv);
}

// Each block has a tile of queries and loops over keys.
template <int E, int W>
__global__ void __launch_bounds__(kThreads)
    query_gradients(AttentionRows rows, AttentionGradients gradients) {
  constexpr int kRows = ThreadLayout<E>::kRows;
  extern __shared__ float memory[];
  float* shared = memory;
  const int size = rows.size, head = blockIdx.y;
  const Tile q = take<kRows>(shared, size), dy = take<kRows>(shared, size), k = take<kRows>(shared, size),
             v = take<kRows>(shared, size), buffer = take<kRows>(shared, kRows);
  const std::int64_t query = std::int64_t{gridDim.x - 1 - blockIdx.x} * kRows;
  const std::int64_t kv_column = std::int64_t{head / rows.group} * size;
  const ThreadLayout<E> layout;
  fetch<kRows>(q, rows.q, query, std::int64_t{head} * size, size);
  fetch<kRows>(dy, gradients.dy, query, std::int64_t{head} * size, size);
  float dq[E][W] = {};
  const std::int64_t end = query + kRows < rows.rows ? query + kRows : rows.rows;
  for (std::int64_t key = rows.first_key_tile(query); key < end; key += kRows) {
    __syncthreads();
    fetch<kRows>(k, rows.k, key, kv_column, size);
    fetch<kRows>(v, rows.v, key, kv_column, size);
    __syncthreads();
    float score[E][E], slope[E][E];
    dots(layout, q, k, size, score);
    dots(layout, dy, v, size, slope);
    score_gradients(layout, rows, gradients, head, query, key, score, slope);
    write_tile(layout, buffer, slope);
    __syncwarp();
    accumulate<false>(layout, buffer, k, size, dq);
  }
  put_results(layout, gradients.dq, query, std::int64_t{head} * size, size, dq, gradients.add_dq);
}

// E, the rows of a tile per thread row, and W, the columns of a head per thread.
template <int each, int width>
struct PlainTiles {
  static constexpr int E = each, W = width, kRows = ThreadLayout<E>::kRows;
};

// Calls body(PlainTiles) for a head size.
template <class Body>
void by_size(std::int64_t size, Body body) {
  if (size > kLargestHead) refuse("[attention] expected a head size of at most 256", size);
  if (size <= kSide) return body(PlainTiles<4, 1>{});
  if (size <= 2 * kSide) return body(PlainTiles<4, 2>{});
  if (size <= 4 * kSide) return body(PlainTiles<4, 4>{});
  if (size <= 8 * kSide) return body(PlainTiles<4, 8>{});
  body(PlainTiles<2, 16>{});
}

template <class Kernel, class... Args>
void run(const char* name, cudaStream_t stream, Kernel kernel, int tile_rows, std::int64_t rows,
         std::int64_t heads, int tiles, std::int64_t size, const Args&... args) {
  const int bytes =
      static_cast<int>(sizeof(float)) *
      (tiles * tile_floats(tile_rows, static_cast<int>(size)) + tile_floats(tile_rows, tile_rows));
  reserve_shared(name, kernel, bytes);
  kernel<<<dim3(blocks_for(rows, tile_rows), static_cast<unsigned>(heads)), kThreads,
           static_cast<std::size_t>(bytes), stream>>>(args...);
  launched(name);
}

void plain_attention_forward(cudaStream_t stream, const Attention& op) {
  by_size(op.head_size(), [&](auto shape) {
    run("attention", stream, forward_tiles<shape.E, shape.W>, shape.kRows, op.q.rows, op.at.heads, 3,
        op.head_size(), AttentionRows(op), View(op.y), View(op.lse));
  });
}

void plain_attention_backward(cudaStream_t stream, const Attention& op, const float* delta) {
  const AttentionRows rows(op);
  const AttentionGradients gradients(op, delta);
  by_size(op.head_size(), [&](auto shape) {
    if (op.dk || op.dv)
      run("attention keys backward", stream, key_gradients<shape.E, shape.W>, shape.kRows, op.q.rows,
          op.at.kv_heads, 4, op.head_size(), rows, gradients);
    if (op.dq)
      run("attention queries backward", stream, query_gradients<shape.E, shape.W>, shape.kRows, op.q.rows,
          op.at.heads, 4, op.head_size(), rows, gradients);
  });
}

bool on_tensor_cores(const Attention& op) {
  const std::int64_t size = op.head_size();
  return op.q.dtype != DType::f32 && (size == 32 || size == 64 || size == 96 || size == 128 || size == 256) &&
         vectorized(op.q, {op.k, op.v, op.y, op.dy, op.dq, op.dk, op.dv});
}

// Hopper's own instructions need bf16, 32-bit row numbers, and scale > 0, so that the maximum score
// is also the maximum after scaling. Heads of 96 or 256 and softcaps have no such kernels: few
// models have them.
bool on_hopper(const Context& context, const Attention& op) {
  const std::int64_t size = op.head_size();
  return runtime_of(context).hopper() && on_tensor_cores(op) && op.q.dtype == DType::bf16 &&
         (size == 32 || size == 64 || size == 128) && op.at.softcap == 0 && op.at.scale > 0 &&
         op.q.rows < (1 << 30);
}

// delta[n, h] = dy . y, which the softmax backward subtracts.
void fill_delta(cudaStream_t stream, const Attention& op, float* delta) {
  const View dy(op.dy), y(op.y);
  const int size = static_cast<int>(op.head_size()), heads = op.at.heads;
  for_each_row("attention delta", stream, op.q.rows * heads, [=] __device__(std::int64_t row, int lane) {
    const std::int64_t n = row / heads, column = row % heads * size;
    float dot = 0;
    for (int d = lane; d < size; d += kWarp) dot += load_one(dy, n, column + d) * load_one(y, n, column + d);
    dot = warp_sum(dot);
    if (lane == 0) delta[row] = dot;
  });
}

void attention_forward(const Context& context, const OpCall& call) {
  const Attention op(call);
  if (op.q.rows == 0) return;
  (on_hopper(context, op) ? wgmma_attention_forward
   : on_tensor_cores(op)  ? mma_attention_forward
                          : plain_attention_forward)(stream_of(context), op);
}

void attention_backward(const Context& context, const OpCall& call) {
  const Attention op(call);
  if (op.q.rows == 0 || (!op.dq && !op.dk && !op.dv)) return;
  if (on_hopper(context, op))
    return wgmma_attention_backward(stream_of(context), op, static_cast<float2*>(call.scratch.data));
  auto* delta = static_cast<float*>(call.scratch.data);
  fill_delta(stream_of(context), op, delta);
  (on_tensor_cores(op) ? mma_attention_backward : plain_attention_backward)(stream_of(context), op, delta);
}

// exclusive_attention: a warp handles one kv head of a row with the query heads that share it, in
// order, and sums dv in that order.
__device__ float dot(const View& a, std::int64_t a_column, const View& b, std::int64_t b_column,
                     std::int64_t row, int size, int lane) {
  float sum = 0;
  for (int d = lane; d < size; d += kWarp)
    sum += load_one(a, row, a_column + d) * load_one(b, row, b_column + d);
  return warp_sum(sum);
}

__device__ float length_of(const View& v, std::int64_t column, std::int64_t row, int size, int lane) {
  const float length = sqrtf(dot(v, column, v, column, row, size, lane));
  return length < static_cast<float>(kMinValueNorm) ? static_cast<float>(kMinValueNorm) : length;
}

void exclusive_attention_forward(const Context& context, const OpCall& call) {
  const ExclusiveAttention op(call);
  const View y(op.y), v(op.v), z(op.z);
  const int size = static_cast<int>(op.head_size()), group = static_cast<int>(op.group()),
            kv_heads = op.at.kv_heads;
  for_each_row("exclusive_attention", stream_of(context), op.y.rows * kv_heads,
               [=] __device__(std::int64_t index, int lane) {
                 const std::int64_t row = index / kv_heads, kv = index % kv_heads * size;
                 const float length = length_of(v, kv, row, size, lane);
                 for (int g = 0; g < group; ++g) {
                   const std::int64_t column = kv * group + g * size;
                   const float share = dot(y, column, v, kv, row, size, lane) / length;
                   for (int d = lane; d < size; d += kWarp)
                     store_one(z, row, column + d,
                               load_one(y, row, column + d) - share * load_one(v, row, kv + d) / length);
                 }
               });
}

void exclusive_attention_backward(const Context& context, const OpCall& call) {
  const ExclusiveAttention op(call);
  if (op.head_size() > kLargestExclusiveHead)
    refuse("[exclusive_attention] expected a head size of at most 128", op.head_size());
  const View y(op.y), v(op.v), dz(op.dz), dy(op.dy), dv(op.dv);
  const int size = static_cast<int>(op.head_size()), group = static_cast<int>(op.group()),
            kv_heads = op.at.kv_heads;
  const bool add_dy = op.add_dy, add_dv = op.add_dv;
  for_each_row("exclusive_attention backward", stream_of(context), op.y.rows * kv_heads,
               [=] __device__(std::int64_t index, int lane) {
                 const std::int64_t row = index / kv_heads, kv = index % kv_heads * size;
                 const float length = length_of(v, kv, row, size, lane);
                 constexpr int kPerLane = kLargestExclusiveHead / kWarp;  // columns per lane
                 float sum[kPerLane] = {};
                 for (int g = 0; g < group; ++g) {
                   const std::int64_t column = kv * group + g * size;
                   const float yu = dot(y, column, v, kv, row, size, lane) / length;
                   const float zu = dot(dz, column, v, kv, row, size, lane) / length;
#pragma unroll
                   for (int i = 0; i < kPerLane; ++i) {
                     const int d = lane + i * kWarp;
                     if (d >= size) continue;
                     const float u = load_one(v, row, kv + d) / length, slope = load_one(dz, row, column + d);
                     sum[i] -= (zu * load_one(y, row, column + d) + yu * slope - 2 * yu * zu * u) / length;
                     float result[1] = {slope - zu * u};
                     put(dy, row, column + d, result, add_dy);
                   }
                 }
#pragma unroll
                 for (int i = 0; i < kPerLane; ++i) {
                   const int d = lane + i * kWarp;
                   float result[1] = {sum[i]};
                   if (d < size) put(dv, row, kv + d, result, add_dv);
                 }
               });
}

std::int64_t attention_scratch_bytes(std::span<const Shape> in, const Attributes& attributes) {
  return attention_fact_bytes(in[0].rows, attributes.as<AttentionAttributes>().heads);
}

}  // namespace

extern const PluginOp kAttention = {"attention",
                                    {.forward = attention_forward,
                                     .backward = attention_backward,
                                     .rows = kRowTypes,
                                     .scratch_bytes = attention_scratch_bytes}};
extern const PluginOp kExclusiveAttention = {
    "exclusive_attention",
    {.forward = exclusive_attention_forward, .backward = exclusive_attention_backward, .rows = kRowTypes}};

}  // namespace thimble::cuda
