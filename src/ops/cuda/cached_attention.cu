// cached_attention: a block computes, for one row, the query heads that share keys. A key of D
// columns is read by D / 8 lanes, 8 columns each, so a warp reads several keys at once. Each group
// of lanes has its own online softmax; groups, then warps, are merged at the end in order. A long
// context is split into parts of fixed length, one block each, which a second kernel merges.
//
// In calls of up to kFewRows rows the assignment of keys depends only on the context, the window
// and the position of the row, so the other rows of a call do not change the bits of a row. Larger
// calls process prompts: cached_attention_blocks.cu computes their tiles, and contexts are not
// split.
#include "ops/attention.h"

#include "ops/cuda/attention.h"

namespace thimble::cuda {

namespace {

// The most keys that a row attends to.
std::int32_t window_of(const CachedAttentionAttributes& at) {
  return at.window > 0 ? std::min(at.window, at.context) : at.context;
}

// For few rows, many keys are split into parts of this many.
constexpr std::int64_t kCachedPart = 512;
std::int64_t cached_attention_parts(std::int64_t rows, const CachedAttentionAttributes& at) {
  const std::int64_t keys = window_of(at);
  return rows <= kFewRows && keys > 2 * kCachedPart ? (keys + kCachedPart - 1) / kCachedPart : 1;
}

constexpr int kWarps = 16, kKeysInFlight = 4;  // keys in flight per group of lanes
constexpr float kLowest = -1e30f;              // of masked keys: finite, so differences are too
constexpr float kLog2E = 1.4426950408889634f;  // 2^x is faster than e^x

struct Cached {
  View q, k_cache, v_cache, y;
  Ints slot, position;
  std::int32_t group, context, window;  // no window: as long as the context
  std::int32_t keys_each, parts;        // keys per part
  bool tiles;                           // rows in prompt tiles are computed by cached_attention_blocks.cu
  float scale;
  Softcap softcap;  // of scores times log2(e)
  // Per row, head and part: maximum score, sum, D unnormalized results. nullptr: a single part.
  float* partial;

  __device__ std::int32_t first_key(std::int32_t at) const { return max(0, at - window + 1); }
};

// The rows of a slot from key `begin` on. With a window, the slot is a ring.
struct SlotRows {
  std::int64_t first;
  std::int32_t start, context;  // start: the last position up to `begin` in the first row

  __device__ SlotRows(std::int64_t slot, std::int32_t begin, std::int32_t rows)
      : first(slot * rows), start(begin < rows ? 0 : begin - begin % rows), context(rows) {}
  __device__ std::int64_t of(std::int32_t key) const {
    const std::int32_t row = key - start;
    return first + (row < context ? row : row - context);
  }
};

// The state of an online softmax: a score weighs 2^(score - highest).
struct Running {
  float highest = kLowest, sum = 0, result[kVector] = {};

  __device__ void merge(float other_highest, float other_sum, const float (&other)[kVector]) {
    const float now = fmaxf(highest, other_highest);
    const float mine = exp2f(highest - now), theirs = exp2f(other_highest - now);
    sum = sum * mine + other_sum * theirs;
#pragma unroll
    for (int i = 0; i < kVector; ++i) result[i] = result[i] * mine + other[i] * theirs;
    highest = now;
  }
};

template <int lanes>
__device__ float dot(const float (&a)[kVector], const float (&b)[kVector]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum += a[i] * b[i];
#pragma unroll
  for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

// Adds kKeysInFlight keys, ignoring those from `end` on, to the softmax of every head.
template <int lanes, int heads>
__device__ void add_keys(const Cached& c, const SlotRows& rows, std::int64_t column, int key, int stride,
                         int end, const float (&query)[heads][kVector], Running (&running)[heads]) {
  Raw k[kKeysInFlight] = {}, v[kKeysInFlight] = {};
#pragma unroll
  for (int i = 0; i < kKeysInFlight; ++i)
    if (key + i * stride < end) {  // memory past the end may contain anything, even NaN
      k[i] = fetch(c.k_cache, rows.of(key + i * stride), column);
      v[i] = fetch(c.v_cache, rows.of(key + i * stride), column);
    }
  float score[heads][kKeysInFlight];
#pragma unroll
  for (int i = 0; i < kKeysInFlight; ++i) {
    float x[kVector];
    unpack(k[i], c.k_cache, x);
#pragma unroll
    for (int h = 0; h < heads; ++h) {
      const float found = dot<lanes>(query[h], x);
      score[h][i] = key + i * stride < end ? c.softcap.apply(found) : kLowest;
    }
  }
#pragma unroll
  for (int h = 0; h < heads; ++h) {
    float now = running[h].highest;
#pragma unroll
    for (int i = 0; i < kKeysInFlight; ++i) now = fmaxf(now, score[h][i]);
    const float keep = exp2f(running[h].highest - now);
    running[h].highest = now;
    running[h].sum *= keep;
#pragma unroll
    for (float& x : running[h].result) x *= keep;
  }
#pragma unroll
  for (int i = 0; i < kKeysInFlight; ++i) {
    float x[kVector];
    unpack(v[i], c.v_cache, x);
#pragma unroll
    for (int h = 0; h < heads; ++h) {
      const float weight = key + i * stride < end ? exp2f(score[h][i] - running[h].highest) : 0.0f;
      running[h].sum += weight;
#pragma unroll
      for (int e = 0; e < kVector; ++e) running[h].result[e] += weight * x[e];
    }
  }
}

// Merges the groups of a warp; every lane gets the merged softmax of its columns.
template <int lanes>
__device__ void merge_groups(Running& running) {
#pragma unroll
  for (int step = lanes; step < kWarp; step *= 2) {
    float other[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) other[i] = __shfl_xor_sync(~0u, running.result[i], step);
    const float highest = __shfl_xor_sync(~0u, running.highest, step),
                sum = __shfl_xor_sync(~0u, running.sum, step);
    running.merge(highest, sum, other);
  }
}

template <int lanes, int heads, DType dtype>
__global__ void __launch_bounds__(kWarps* kWarp) attend(Cached c) {
  // Compile-time constants: no branches, fewer registers.
  c.q.half = c.k_cache.half = c.v_cache.half = c.y.half = dtype != DType::f32;
  c.q.f16 = c.k_cache.f16 = c.v_cache.f16 = c.y.f16 = dtype == DType::f16;
  constexpr int D = lanes * kVector, groups = kWarp / lanes;
  __shared__ float highest[kWarps][heads], sums[kWarps][heads], results[kWarps][heads][D];
  const std::int64_t n = blockIdx.x;
  if (c.tiles && is_prompt_tile(c.slot, c.position, n / kPromptTile * kPromptTile, c.q.rows)) return;
  const int head = static_cast<int>(blockIdx.y) * heads, part = static_cast<int>(blockIdx.z);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int slot = c.slot[n], last = c.position[n];
  const int begin = c.first_key(last) + part * c.keys_each, end = min(begin + c.keys_each, last + 1);
  if (slot < 0) {
    for (int i = static_cast<int>(threadIdx.x); i < heads * D && part == 0; i += kWarps * kWarp)
      store_one(c.y, n, std::int64_t{head} * D + i, 0.0f);
    return;
  }
  if (begin >= end) return;

  float query[heads][kVector];
#pragma unroll
  for (int h = 0; h < heads; ++h) {
    load(c.q, n, std::int64_t{head + h} * D + lane % lanes * kVector, query[h]);
#pragma unroll
    for (float& x : query[h]) x *= c.scale * kLog2E;
  }
  Running running[heads];
  const SlotRows rows(slot, begin, c.context);
  const std::int64_t column = std::int64_t{head / c.group} * D + lane % lanes * kVector;
  constexpr int stride = kWarps * groups;
  for (int key = begin + warp * groups + lane / lanes; key - lane / lanes < end;
       key += kKeysInFlight * stride)
    add_keys<lanes, heads>(c, rows, column, key, stride, end, query, running);

#pragma unroll
  for (int h = 0; h < heads; ++h) {
    merge_groups<lanes>(running[h]);
    if (lane < lanes)
#pragma unroll
      for (int i = 0; i < kVector; ++i) results[warp][h][lane * kVector + i] = running[h].result[i];
    if (lane == 0) highest[warp][h] = running[h].highest, sums[warp][h] = running[h].sum;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < heads * D; i += kWarps * kWarp) {
    const int h = i / D, d = i % D;
    float maximum = highest[0][h], sum = 0, result = 0;
#pragma unroll
    for (int w = 1; w < kWarps; ++w) maximum = fmaxf(maximum, highest[w][h]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float weight = exp2f(highest[w][h] - maximum);
      sum += weight * sums[w][h];
      result += weight * results[w][h][d];
    }
    if (!c.partial) {
      store_one(c.y, n, std::int64_t{head} * D + i, result / sum);
      continue;
    }
    const std::int64_t all_heads = gridDim.y * heads;
    float* to = c.partial + ((n * all_heads + head + h) * c.parts + part) * (D + 2);
    if (d == 0) to[0] = maximum, to[1] = sum;
    to[2 + d] = result;
  }
}

// Each thread merges the parts of one result of one row, in order.
void merge_parts(cudaStream_t stream, const Cached& c, std::int64_t rows, int heads, int D) {
  for_each_pack<1>("cached_attention parts", stream, rows, std::int64_t{heads} * D,
                   [=] __device__(std::int64_t n, int column) {
                     if (c.slot[n] < 0) return;  // already set to zero
                     const float* from = c.partial + (n * heads + column / D) * c.parts * (D + 2);
                     const int last = c.position[n], parts = (last - c.first_key(last)) / c.keys_each + 1;
                     float maximum = kLowest, sum = 0, result = 0;
                     for (int p = 0; p < parts; ++p) maximum = fmaxf(maximum, from[p * (D + 2)]);
                     for (int p = 0; p < parts; ++p) {
                       const float weight = exp2f(from[p * (D + 2)] - maximum);
                       sum += weight * from[p * (D + 2) + 1];
                       result += weight * from[p * (D + 2) + 2 + column % D];
                     }
                     store_one(c.y, n, column, result / sum);
                   });
}

template <int lanes, int heads, DType dtype>
void attend_heads(cudaStream_t stream, const Cached& c, const CachedAttention& op) {
  const dim3 grid(blocks_for(op.q.rows, 1), static_cast<unsigned>(op.at.heads / heads),
                  static_cast<unsigned>(c.parts));
  attend<lanes, heads, dtype><<<grid, kWarps * kWarp, 0, stream>>>(c);
  launched("cached_attention");
  if (c.partial) merge_parts(stream, c, op.q.rows, op.at.heads, lanes * kVector);
}

template <int lanes>
void attend_size(cudaStream_t stream, const Cached& c, const CachedAttention& op) {
  if (op.q.dtype == DType::f32)
    attend_heads<lanes, 1, DType::f32>(stream, c, op);
  else if (op.q.dtype == DType::f16)
    attend_heads<lanes, 1, DType::f16>(stream, c, op);
  else if (c.group % 4 == 0 && lanes < kWarp)  // four heads of 256 do not fit into shared memory
    attend_heads < lanes, lanes<kWarp ? 4 : 2, DType::bf16>(stream, c, op);
  else if (c.group % 2 == 0)
    attend_heads<lanes, 2, DType::bf16>(stream, c, op);
  else
    attend_heads<lanes, 1, DType::bf16>(stream, c, op);
}

template <int V>
void append(cudaStream_t stream, const CachedAttention& op) {
  const View k(op.k), v(op.v), k_cache(op.k_cache), v_cache(op.v_cache);
  const Ints slot(op.slot), position(op.position);
  const std::int32_t context = op.at.context;
  for_each_pack<V>("cached_attention append", stream, op.k.rows, op.k.cols,
                   [=] __device__(std::int64_t n, int column) {
                     if (slot[n] < 0) return;
                     const std::int64_t row =
                         slot[n] * context + (position[n] < context ? position[n] : position[n] % context);
                     float x[V];
                     load(k, n, column, x);
                     store(k_cache, row, column, x);
                     load(v, n, column, x);
                     store(v_cache, row, column, x);
                   });
}

// The fallback for heads of any size up to 256 at any alignment, without vector loads. A thread
// block has one head of one row: each thread computes the score of one key of every 128, then the
// sums of up to two columns of values. Rows are independent and summed in a fixed order:
// batch-invariant.
constexpr int kPlainKeys = 128, kPlainWarps = kPlainKeys / kWarp, kPlainColumns = 2,
              kLargestHead = kPlainColumns * kPlainKeys;

struct PlainCached {
  View q, k_cache, v_cache, y;
  Ints slot, position;
  std::int32_t size, group, context, window;
  float scale;
  Softcap softcap;
};

// Reduces over all threads with a fixed tree; every thread gets the result.
template <class Combine>
__device__ float over_block(float mine, Combine combine) {
  __shared__ float of_warp[kPlainWarps];
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) mine = combine(mine, __shfl_xor_sync(~0u, mine, step));
  __syncthreads();  // readers of the previous call are done
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = mine;
  __syncthreads();
  float all = of_warp[0];
#pragma unroll
  for (int warp = 1; warp < kPlainWarps; ++warp) all = combine(all, of_warp[warp]);
  return all;
}

__global__ void __launch_bounds__(kPlainKeys) attend_plain(PlainCached c) {
  __shared__ float query[kLargestHead], weights[kPlainKeys];
  const std::int64_t n = blockIdx.x, column = std::int64_t{blockIdx.y} * c.size;
  const int thread = static_cast<int>(threadIdx.x), last = c.position[n];
  const int first_key = max(0, last - c.window + 1);
  if (c.slot[n] < 0) {
    for (int d = thread; d < c.size; d += kPlainKeys) store_one(c.y, n, column + d, 0.0f);
    return;
  }
  const SlotRows rows(c.slot[n], first_key, c.context);
  const std::int64_t kv = std::int64_t{static_cast<int>(blockIdx.y) / c.group} * c.size;
  for (int d = thread; d < c.size; d += kPlainKeys) query[d] = load_one(c.q, n, column + d);
  __syncthreads();
  float highest = -INFINITY, sum = 0, result[kPlainColumns] = {};
  for (int begin = first_key; begin <= last; begin += kPlainKeys) {
    const int key = begin + thread;
    float score = -INFINITY;
    if (key <= last) {
      score = 0;
      for (int i = 0; i < c.size; ++i) score += query[i] * load_one(c.k_cache, rows.of(key), kv + i);
      score = c.softcap.apply(score) * c.scale;
    }
    const float now = fmaxf(highest, over_block(score, [](float a, float b) { return fmaxf(a, b); }));
    const float keep = highest == -INFINITY ? 0.0f : expf(highest - now);
    const float weight = key <= last ? expf(score - now) : 0.0f;
    weights[thread] = weight;
    // The barriers in over_block also publish `weights`.
    sum = sum * keep + over_block(weight, [](float a, float b) { return a + b; });
    highest = now;
    const int count = last - begin + 1 < kPlainKeys ? last - begin + 1 : kPlainKeys;
#pragma unroll
    for (int part = 0; part < kPlainColumns; ++part) {
      const int d = thread + part * kPlainKeys;
      result[part] *= keep;
      if (d >= c.size) continue;
      for (int i = 0; i < count; ++i)
        result[part] += weights[i] * load_one(c.v_cache, rows.of(begin + i), kv + d);
    }
    __syncthreads();
  }
#pragma unroll
  for (int part = 0; part < kPlainColumns; ++part) {
    const int d = thread + part * kPlainKeys;
    if (d < c.size) store_one(c.y, n, column + d, result[part] / sum);
  }
}

void attend_fallback(const Context& context, const CachedAttention& op) {
  if (op.head_size() > kLargestHead)
    refuse("[cached_attention] expected a head size of at most 256", op.head_size());
  const PlainCached cached{View(op.q),
                           View(op.k_cache),
                           View(op.v_cache),
                           View(op.y),
                           Ints(op.slot),
                           Ints(op.position),
                           static_cast<std::int32_t>(op.head_size()),
                           static_cast<std::int32_t>(op.group()),
                           op.at.context,
                           window_of(op.at),
                           op.at.scale,
                           Softcap(op.at.softcap, op.at.scale)};
  attend_plain<<<dim3(blocks_for(op.q.rows, 1), static_cast<unsigned>(op.at.heads)), kPlainKeys, 0,
                 stream_of(context)>>>(cached);
  launched("cached_attention");
}

void cached_attention_forward(const Context& context, const OpCall& call) {
  const CachedAttention op(call);
  if (op.q.rows == 0) return;
  const cudaStream_t stream = stream_of(context);
  if (vectorized(op.k, {op.v, op.k_cache, op.v_cache}))
    append<kVector>(stream, op);
  else
    append<1>(stream, op);

  const std::int64_t D = op.head_size(), parts = cached_attention_parts(op.q.rows, op.at);
  if (!vectorized(op.q, {op.k_cache, op.v_cache}) || D % kVector != 0) return attend_fallback(context, op);
  const bool tiles = op.q.rows > kFewRows && supports_prompt_tiles(op);
  if (tiles) attend_prompt_tiles(context, op);
  const Cached c{View(op.q),
                 View(op.k_cache),
                 View(op.v_cache),
                 View(op.y),
                 Ints(op.slot),
                 Ints(op.position),
                 static_cast<std::int32_t>(op.group()),
                 op.at.context,
                 window_of(op.at),
                 static_cast<std::int32_t>(parts > 1 ? kCachedPart : op.at.context),
                 static_cast<std::int32_t>(parts),
                 tiles,
                 op.at.scale,
                 Softcap(op.at.softcap * kLog2E, 1),
                 parts > 1 ? static_cast<float*>(op.scratch.data) : nullptr};
  switch (D) {
    case 16:
      return attend_size<2>(stream, c, op);
    case 32:
      return attend_size<4>(stream, c, op);
    case 64:
      return attend_size<8>(stream, c, op);
    case 128:
      return attend_size<16>(stream, c, op);
    case 256:
      return attend_size<32>(stream, c, op);
    default:
      return attend_fallback(context, op);
  }
}

std::int64_t cached_attention_scratch_bytes(std::span<const Shape> in, const Attributes& attributes) {
  // Per part: maximum score, sum and results.
  const auto at = attributes.as<CachedAttentionAttributes>();
  const std::int64_t N = in[0].rows, C = in[0].cols, parts = cached_attention_parts(N, at);
  return parts > 1 ? N * parts * (C + 2 * at.heads) * kFloatBytes : 0;
}

}  // namespace

extern const PluginOp kCachedAttention = {"cached_attention",
                                          {.forward = cached_attention_forward,
                                           .rows = kRowTypes,
                                           .scratch_bytes = cached_attention_scratch_bytes}};

}  // namespace thimble::cuda
