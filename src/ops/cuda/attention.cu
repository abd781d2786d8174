// attention: the choice of kernels (attention.h) and those in plain arithmetic;
// exclusive_attention.
#include "ops/cuda/attention.h"

#include "ops/attention.h"

namespace thimble::cuda {

namespace {

constexpr int kLargestHead = 128;

// Plain arithmetic uses 16 x 16 threads. Thread (y, x) has rows 4y .. 4y + 3 and columns x, x + 16,
// ... of a 64 x 64 tile of scores, and likewise of a 64 x D tile of results. The 16 threads of a
// row are half a warp.
constexpr int kSide = 16, kEach = 4;
static_assert(kQueryTile == kSide * kEach && kKeyTile == kSide * kEach);

struct ThreadLayout {
  int x = static_cast<int>(threadIdx.x) % kSide, y = static_cast<int>(threadIdx.x) / kSide;
  __device__ int row(int i) const { return y * kEach + i; }
  __device__ int column(int j) const { return x + j * kSide; }
};

// Rows of D floats with an odd pitch, which avoids bank conflicts between the threads of a row.
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

// sums[i][j] = row(i) of a . row column(j) of b: scores.
__device__ void dots(const ThreadLayout& layout, const Tile& a, const Tile& b, int size,
                     float (&sums)[kEach][kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) sums[i][j] = 0;
  for (int d = 0; d < size; ++d) {
    float left[kEach], right[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) left[i] = a.at(layout.row(i), d), right[i] = b.at(layout.column(i), d);
#pragma unroll
    for (int i = 0; i < kEach; ++i)
#pragma unroll
      for (int j = 0; j < kEach; ++j) sums[i][j] += left[i] * right[j];
  }
}

// results[i][k] += sum over c of weights(row(i), c) tile(c, column(k)); transposed: weights(c,
// row(i)).
template <int W, bool transposed>
__device__ void accumulate(const ThreadLayout& layout, const Tile& weights, const Tile& tile, int size,
                           float (&results)[kEach][W]) {
  for (int c = 0; c < kKeyTile; ++c) {
    float weight[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      weight[i] = transposed ? weights.at(c, layout.row(i)) : weights.at(layout.row(i), c);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      if (layout.column(k) >= size) continue;
      const float value = tile.at(c, layout.column(k));
#pragma unroll
      for (int i = 0; i < kEach; ++i) results[i][k] += weight[i] * value;
    }
  }
}

template <int W>
__device__ void put_results(const ThreadLayout& layout, const View& to, std::int64_t first,
                            std::int64_t column, int size, float (&results)[kEach][W], bool add) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
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

template <int W>
__global__ void __launch_bounds__(kThreads) forward_tiles(AttentionRows rows, View y, View lse) {
  extern __shared__ float memory[];
  float* shared = memory;
  const int size = rows.size, head = blockIdx.y;
  const Tile q = take(shared, size), k = take(shared, size), v = take(shared, size),
             weights = take(shared, kKeyTile);
  const std::int64_t query = std::int64_t{gridDim.x - 1 - blockIdx.x} * kQueryTile;
  const std::int64_t kv_column = std::int64_t{head / rows.group} * size;
  const ThreadLayout layout;
  fetch(q, rows.q, query, std::int64_t{head} * size, size);

  std::int64_t n[kEach], first[kEach];
  float highest[kEach], sum[kEach], results[kEach][W] = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    n[i] = query + layout.row(i);
    // Past the batch: attends to nothing.
    first[i] = n[i] < rows.rows ? rows.first[n[i]] : n[i] + 1;
    highest[i] = -INFINITY, sum[i] = 0;
  }
  const std::int64_t end = query + kQueryTile < rows.rows ? query + kQueryTile : rows.rows;
  for (std::int64_t key = rows.first_key_tile(query); key < end; key += kKeyTile) {
    __syncthreads();
    fetch(k, rows.k, key, kv_column, size);
    fetch(v, rows.v, key, kv_column, size);
    __syncthreads();
    float score[kEach][kEach];
    dots(layout, q, k, size, score);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      bool visible[kEach];
      float top = -INFINITY;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const std::int64_t m = key + layout.column(j);
        visible[j] = m >= first[i] && m <= n[i];
        score[i][j] *= rows.scale;
        if (visible[j]) top = fmaxf(top, score[i][j]);
      }
      const float now = fmaxf(highest[i], half_warp_max(top));
      // exp(-inf - -inf) would be NaN before the first tile.
      const float keep = highest[i] == -INFINITY ? 0.0f : expf(highest[i] - now);
      float added = 0;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
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
    accumulate<W, false>(layout, weights, v, size, results);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int w = 0; w < W; ++w) results[i][w] /= sum[i];
    if (layout.x == 0 && n[i] < rows.rows) store_one(lse, n[i], head, highest[i] + logf(sum[i]));
  }
  put_results(layout, y, query, std::int64_t{head} * size, size, results, false);
}

// p and ds = p (dp - delta) scale of one tile; inputs are q.k in `score` and dy.v in `slope`.
__device__ void score_gradients(const ThreadLayout& layout, const AttentionRows& rows,
                                const AttentionGradients& gradients, int head, std::int64_t query,
                                std::int64_t key, float (&score)[kEach][kEach],
                                float (&slope)[kEach][kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const std::int64_t n = query + layout.row(i);
    const bool valid = n < rows.rows;
    const std::int64_t first = valid ? rows.first[n] : n + 1;
    const float lse = valid ? load_one(gradients.lse, n, head) : 0.0f;
    const float delta = valid ? gradients.delta[n * gradients.heads + head] : 0.0f;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const std::int64_t m = key + layout.column(j);
      const bool visible = m >= first && m <= n;
      score[i][j] = visible ? expf(score[i][j] * rows.scale - lse) : 0.0f;
      slope[i][j] = visible ? score[i][j] * (slope[i][j] - delta) * rows.scale : 0.0f;
    }
  }
}

__device__ void write_tile(const ThreadLayout& layout, const Tile& tile,
                           const float (&values)[kEach][kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) tile.at(layout.row(i), layout.column(j)) = values[i][j];
}

// Each block has a tile of keys and loops over the queries of all heads of the group.
template <int W>
__global__ void __launch_bounds__(kThreads) key_gradients(AttentionRows rows, AttentionGradients gradients) {
  extern __shared__ float memory[];
  float* shared = memory;
  const int size = rows.size, kv_head = blockIdx.y;
  const Tile q = take(shared, size), dy = take(shared, size), k = take(shared, size), v = take(shared, size);
  const Tile buffer = take(shared, kKeyTile);
  const std::int64_t key = std::int64_t{blockIdx.x} * kKeyTile, kv_column = std::int64_t{kv_head} * size;
  const std::int64_t last_key = (key + kKeyTile < rows.rows ? key + kKeyTile : rows.rows) - 1;
  const ThreadLayout layout;
  fetch(k, rows.k, key, kv_column, size);
  fetch(v, rows.v, key, kv_column, size);
  float dk[kEach][W] = {}, dv[kEach][W] = {};
  for (int g = 0; g < rows.group; ++g) {
    const int head = kv_head * rows.group + g;
    // `first` is non-decreasing: if a tile's first query starts after these keys, all later do.
    for (std::int64_t query = key; query < rows.rows && rows.first[query] <= last_key; query += kQueryTile) {
      __syncthreads();
      fetch(q, rows.q, query, std::int64_t{head} * size, size);
      fetch(dy, gradients.dy, query, std::int64_t{head} * size, size);
      __syncthreads();
      float score[kEach][kEach], slope[kEach][kEach];
      dots(layout, q, k, size, score);
      dots(layout, dy, v, size, slope);
      score_gradients(layout, rows, gradients, head, query, key, score, slope);
      write_tile(layout, buffer, score);
      __syncthreads();
      accumulate<W, true>(layout, buffer, dy, size, dv);
      __syncthreads();
      write_tile(layout, buffer, slope);
      __syncthreads();
      accumulate<W, true>(layout, buffer, q, size, dk);
    }
  }
  if (gradients.dk) put_results(layout, gradients.dk, key, kv_column, size, dk, gradients.add_dk);
  if (gradients.dv) put_results(layout, gradients.dv, key, kv_column, size, dv, gradients.add_dv);
}

// Each block has a tile of queries and loops over keys.
template <int W>
__global__ void __launch_bounds__(kThreads)
    query_gradients(AttentionRows rows, AttentionGradients gradients) {
  extern __shared__ float memory[];
  float* shared = memory;
  const int size = rows.size, head = blockIdx.y;
  const Tile q = take(shared, size), dy = take(shared, size), k = take(shared, size), v = take(shared, size);
  const Tile buffer = take(shared, kKeyTile);
  const std::int64_t query = std::int64_t{gridDim.x - 1 - blockIdx.x} * kQueryTile;
  const std::int64_t kv_column = std::int64_t{head / rows.group} * size;
  const ThreadLayout layout;
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
    dots(layout, q, k, size, score);
    dots(layout, dy, v, size, slope);
    score_gradients(layout, rows, gradients, head, query, key, score, slope);
    write_tile(layout, buffer, slope);
    __syncwarp();
    accumulate<W, false>(layout, buffer, k, size, dq);
  }
  put_results(layout, gradients.dq, query, std::int64_t{head} * size, size, dq, gradients.add_dq);
}

// Calls body(W), where W is the number of columns of a head per thread.
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

bool on_tensor_cores(const Attention& op) {
  const std::int64_t size = op.head_size();
  return op.q.dtype != DType::f32 && (size == 32 || size == 64 || size == 128) &&
         vectorized(op.q, {op.k, op.v, op.y, op.dy, op.dq, op.dk, op.dv});
}

// Hopper's own instructions need bf16, 32-bit row numbers, and scale > 0, so that the maximum score
// is also the maximum after scaling.
bool on_hopper(const Context& context, const Attention& op) {
  return runtime_of(context).hopper() && on_tensor_cores(op) && op.q.dtype == DType::bf16 &&
         op.at.scale > 0 && op.q.rows < (1 << 30);
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
  if (!op.at.is_plain()) refuse("[attention] expected no softcap and a window of 0", op.at.window);
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
  if (op.head_size() > kLargestHead)
    refuse("[exclusive_attention] expected a head size of at most 128", op.head_size());
  const View y(op.y), v(op.v), dz(op.dz), dy(op.dy), dv(op.dv);
  const int size = static_cast<int>(op.head_size()), group = static_cast<int>(op.group()),
            kv_heads = op.at.kv_heads;
  const bool add_dy = op.add_dy, add_dv = op.add_dv;
  for_each_row("exclusive_attention backward", stream_of(context), op.y.rows * kv_heads,
               [=] __device__(std::int64_t index, int lane) {
                 const std::int64_t row = index / kv_heads, kv = index % kv_heads * size;
                 const float length = length_of(v, kv, row, size, lane);
                 constexpr int kPerLane = kLargestHead / kWarp;  // columns per lane
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
