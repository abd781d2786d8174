// Attention on the tensor cores. Scores, weights and results stay in registers; the side that is
// looped over is prefetched by one tile.
#include "ops/cuda/attention.h"
#include "ops/cuda/mma.cuh"

namespace thimble::cuda {

namespace {

constexpr int kWarps = 4, kBlock = kWarps * kWarp;  // threads; each warp has 16 rows
static_assert(kQueryTile == kWarps * 16 && kKeyTile == kWarps * 16);
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;  // for base 2

// How heads of D columns are divided. Blocks of large heads have less of everything, so that
// results fit into the registers, and tiles into 99 KB of shared memory.
template <int D>
struct Tiling {
  static constexpr bool kLarge = D > 128;
  static constexpr int kForwardKeys = kLarge ? 32 : kKeyTile;  // per step of forward
  static constexpr int kQueryKeys = kLarge ? 16 : kKeyTile;    // per step of query_gradients
  // key_gradients: queries per step, and parts of a head. Each part has its own warps, which
  // compute the same scores.
  static constexpr int kQueries = kLarge ? 16 : D > 64 ? 32 : 64, kParts = kLarge ? 2 : 1;
  static constexpr int kKeys = kKeyTile / kParts;  // of a block of key_gradients
};

template <int D>
constexpr int halves_of(int rows) {
  return rows * kPitch<D>;
}

// The two rows of a lane, n[0] and n[1] = n[0] + 8, and the first keys that they attend to.
struct LaneRows {
  std::int64_t n[2], first[2];

  __device__ LaneRows(const AttentionRows& rows, std::int64_t tile) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      n[side] = tile + warp * 16 + lane / 4 + 8 * side;
      // Past the batch: attends to nothing.
      first[side] = n[side] < rows.rows ? rows.first_key(n[side]) : n[side] + 1;
    }
  }
  __device__ bool attends(int side, std::int64_t m) const {
    return m >= first[side] && m <= n[side];
  }
};

__device__ int lane_column(int n, int e) {
  return n * 8 + 2 * static_cast<int>(threadIdx.x % 4) + (e & 1);
}

// Reductions over the four lanes that share a row.
__device__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// Whether every query of a tile attends to every key of another: common in long documents.
template <int keys>
__device__ bool all_visible(const AttentionRows& rows, std::int64_t query, std::int64_t key) {
  const std::int64_t last = query + kQueryTile - 1;
  return key + keys - 1 <= query && last < rows.rows && rows.first_key(last) <= key;
}

// Turns a tile of scores into weights. `keep` becomes the factor for the results so far.
template <int T>
__device__ void online_softmax(float (&score)[T][4], const LaneRows& lanes, std::int64_t key, bool masked,
                               float scale, float (&highest)[2], float (&sum)[2], float (&keep)[2]) {
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    float top = -INFINITY;
#pragma unroll
    for (int n = 0; n < T; ++n)
#pragma unroll
      for (int e = 2 * side; e < 2 * side + 2; ++e) {
        const bool hidden = masked && !lanes.attends(side, key + lane_column(n, e));
        score[n][e] = hidden ? -INFINITY : score[n][e] * scale;
        top = fmaxf(top, score[n][e]);
      }
    const float now = fmaxf(highest[side], row_max(top));
    // All masked so far: exp(-inf - -inf) would be NaN.
    const float base = now == -INFINITY ? 0.0f : now;
    keep[side] = exp2f(highest[side] - base);
    float added = 0;
#pragma unroll
    for (int n = 0; n < T; ++n)
#pragma unroll
      for (int e = 2 * side; e < 2 * side + 2; ++e) added += score[n][e] = exp2f(score[n][e] - base);
    sum[side] = sum[side] * keep[side] + added;
    highest[side] = now;
  }
}

template <int D, class H>
__global__ void __launch_bounds__(kBlock) forward_mma(AttentionRows rows, View y, View lse) {
  extern __shared__ __align__(16) Half memory[];
  constexpr int kKeys = Tiling<D>::kForwardKeys;
  Half *q = memory, *streamed = q + halves_of<D>(kQueryTile);
  const auto keys = [&](int stage) { return streamed + stage * halves_of<D>(kKeys); };
  const auto values = [&](int stage) { return streamed + (2 + stage) * halves_of<D>(kKeys); };
  const int head = blockIdx.y, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t query = std::int64_t{gridDim.x - 1 - blockIdx.x} * kQueryTile;
  const std::int64_t column = std::int64_t{head} * D, kv_column = std::int64_t{head / rows.group} * D;
  const std::int64_t begin = rows.first_key_tile(query);
  const std::int64_t end = query + kQueryTile < rows.rows ? query + kQueryTile : rows.rows;
  const auto fetch = [&](std::int64_t key, int stage) {
    fetch_tile<D, kKeys, kBlock>(keys(stage), rows.k, key, kv_column);
    fetch_tile<D, kKeys, kBlock>(values(stage), rows.v, key, kv_column);
    end_of_fetch();
  };
  fetch_tile<D, kQueryTile, kBlock>(q, rows.q, query, column);
  fetch(begin, 0);

  const LaneRows lanes(rows, query);
  float result[D / 8][4] = {}, highest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  for (std::int64_t key = begin; key < end; key += kKeys) {
    const int stage = static_cast<int>((key - begin) / kKeys % 2);
    if (key + kKeys < end) {
      fetch(key + kKeys, 1 - stage);
      wait_for_fetch<1>();
    } else {
      wait_for_fetch<0>();
    }
    __syncthreads();
    float score[kKeys / 8][4], keep[2];
    tile_dots<D, H>(q, warp * 16, keys(stage), score);
    rows.softcap.apply(score);
    online_softmax(score, lanes, key, !all_visible<kKeys>(rows, query, key), rows.scale * kLog2E, highest,
                   sum, keep);
#pragma unroll
    for (auto& part : result) part[0] *= keep[0], part[1] *= keep[0], part[2] *= keep[1], part[3] *= keep[1];
    tile_accumulate<D, H>(score, values(stage), result);
    __syncthreads();
  }
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    sum[side] = row_sum(sum[side]);
#pragma unroll
    for (auto& part : result) part[2 * side] /= sum[side], part[2 * side + 1] /= sum[side];
    if (threadIdx.x % 4 == 0 && lanes.n[side] < rows.rows)
      store_one(lse, lanes.n[side], head, (highest[side] + log2f(sum[side])) * kLn2);
  }
  put_tile<H>(y, query + warp * 16, column, result, false);
}

// Per-query data of a tile.
template <int Q>
struct QueryFacts {
  float lse[Q], delta[Q];  // lse in base 2
  std::int32_t first[Q];

  __device__ void fetch(const AttentionRows& rows, const AttentionGradients& gradients, std::int64_t query,
                        int head) {
    for (int i = static_cast<int>(threadIdx.x); i < Q; i += kBlock) {
      const std::int64_t n = query + i;
      const bool valid = n < rows.rows;
      lse[i] = valid ? load_one(gradients.lse, n, head) * kLog2E : 0.0f;
      delta[i] = valid ? gradients.delta[n * gradients.heads + head] : 0.0f;
      first[i] = valid ? rows.first_key(n) : INT32_MAX;
    }
  }
};

// Each block has a tile of keys and loops over the queries of all heads of the group, Q at a time.
// Tiles have keys as rows and queries as columns: the transposed weights, which multiply dy and q.
template <int D, class H>
__global__ void __launch_bounds__(kBlock)
    key_gradients_mma(AttentionRows rows, AttentionGradients gradients) {
  extern __shared__ __align__(16) Half memory[];
  constexpr int Q = Tiling<D>::kQueries, kKeys = Tiling<D>::kKeys, kHalves = halves_of<D>(Q);
  constexpr int kColumns = D / Tiling<D>::kParts, kRowWarps = kKeys / 16;
  __shared__ QueryFacts<Q> facts[2];
  Half *k = memory, *v = k + halves_of<D>(kKeys), *streamed = v + halves_of<D>(kKeys);
  const auto queries = [&](int stage) { return streamed + stage * kHalves; };
  const auto slopes = [&](int stage) { return streamed + (2 + stage) * kHalves; };
  const int kv_head = blockIdx.y, warp = static_cast<int>(threadIdx.x) / kWarp % kRowWarps;
  const int part = static_cast<int>(threadIdx.x) / kWarp / kRowWarps * kColumns;  // its first column
  const std::int64_t key = std::int64_t{blockIdx.x} * kKeys, kv_column = std::int64_t{kv_head} * D;
  const std::int64_t last_key = (key + kKeys < rows.rows ? key + kKeys : rows.rows) - 1;
  const auto fetch = [&](int g, std::int64_t query, int stage) {
    const int head = kv_head * rows.group + g;
    fetch_tile<D, Q, kBlock>(queries(stage), rows.q, query, std::int64_t{head} * D);
    fetch_tile<D, Q, kBlock>(slopes(stage), gradients.dy, query, std::int64_t{head} * D);
    facts[stage].fetch(rows, gradients, query, head);
    end_of_fetch();
  };
  // Advances to the next tile of queries that may attend to these keys. If the first query of a
  // tile attends to none of them, neither do all later ones of the head.
  const auto next = [&](int& g, std::int64_t& query) {
    query += Q;
    if (query < rows.rows && rows.first_key(query) <= last_key) return true;
    query = key;
    return ++g < rows.group;
  };
  fetch_tile<D, kKeys, kBlock>(k, rows.k, key, kv_column);
  fetch_tile<D, kKeys, kBlock>(v, rows.v, key, kv_column);
  fetch(0, key, 0);

  const std::int64_t m = key + warp * 16 + threadIdx.x % kWarp / 4;  // and m + 8
  const float scale = rows.scale * kLog2E;
  float dk[kColumns / 8][4] = {}, dv[kColumns / 8][4] = {};
  int g = 0, stage = 0;
  for (std::int64_t query = key;; stage = 1 - stage) {
    std::int64_t next_query = query;
    const bool more = next(g, next_query);
    if (more) {
      fetch(g, next_query, 1 - stage);
      wait_for_fetch<1>();
    } else {
      wait_for_fetch<0>();
    }
    __syncthreads();
    const QueryFacts<Q>& fact = facts[stage];
    float weight[Q / 8][4], slope[Q / 8][4];
    tile_dots<D, H>(k, warp * 16, queries(stage), weight);
    tile_dots<D, H>(v, warp * 16, slopes(stage), slope);
    rows.softcap.apply(weight);
#pragma unroll
    for (int n = 0; n < Q / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = lane_column(n, e);
        const std::int64_t row = m + 8 * (e / 2);
        const bool visible = row >= fact.first[i] && row <= query + i;
        const float to_score = rows.scale * rows.softcap.slope(weight[n][e]);
        weight[n][e] = visible ? exp2f(weight[n][e] * scale - fact.lse[i]) : 0.0f;
        slope[n][e] = visible ? weight[n][e] * (slope[n][e] - fact.delta[i]) * to_score : 0.0f;
      }
    tile_accumulate<D, H>(weight, slopes(stage) + part, dv);
    tile_accumulate<D, H>(slope, queries(stage) + part, dk);
    __syncthreads();
    if (!more) break;
    query = next_query;
  }
  if (gradients.dk) put_tile<H>(gradients.dk, key + warp * 16, kv_column + part, dk, gradients.add_dk);
  if (gradients.dv) put_tile<H>(gradients.dv, key + warp * 16, kv_column + part, dv, gradients.add_dv);
}

// Each block has a tile of queries and loops over keys.
template <int D, class H>
__global__ void __launch_bounds__(kBlock)
    query_gradients_mma(AttentionRows rows, AttentionGradients gradients) {
  extern __shared__ __align__(16) Half memory[];
  constexpr int kKeys = Tiling<D>::kQueryKeys;
  Half *q = memory, *dy = q + halves_of<D>(kQueryTile), *streamed = dy + halves_of<D>(kQueryTile);
  const auto keys = [&](int stage) { return streamed + stage * halves_of<D>(kKeys); };
  const auto values = [&](int stage) { return streamed + (2 + stage) * halves_of<D>(kKeys); };
  const int head = blockIdx.y, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t query = std::int64_t{gridDim.x - 1 - blockIdx.x} * kQueryTile;
  const std::int64_t column = std::int64_t{head} * D, kv_column = std::int64_t{head / rows.group} * D;
  const std::int64_t begin = rows.first_key_tile(query);
  const std::int64_t end = query + kQueryTile < rows.rows ? query + kQueryTile : rows.rows;
  const auto fetch = [&](std::int64_t key, int stage) {
    fetch_tile<D, kKeys, kBlock>(keys(stage), rows.k, key, kv_column);
    fetch_tile<D, kKeys, kBlock>(values(stage), rows.v, key, kv_column);
    end_of_fetch();
  };
  fetch_tile<D, kQueryTile, kBlock>(q, rows.q, query, column);
  fetch_tile<D, kQueryTile, kBlock>(dy, gradients.dy, query, column);
  fetch(begin, 0);

  const LaneRows lanes(rows, query);
  float lse[2] = {}, delta[2] = {}, dq[D / 8][4] = {};
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    if (lanes.n[side] >= rows.rows) continue;
    lse[side] = load_one(gradients.lse, lanes.n[side], head) * kLog2E;
    delta[side] = gradients.delta[lanes.n[side] * gradients.heads + head];
  }
  for (std::int64_t key = begin; key < end; key += kKeys) {
    const int stage = static_cast<int>((key - begin) / kKeys % 2);
    if (key + kKeys < end) {
      fetch(key + kKeys, 1 - stage);
      wait_for_fetch<1>();
    } else {
      wait_for_fetch<0>();
    }
    __syncthreads();
    const bool masked = !all_visible<kKeys>(rows, query, key);
    float weight[kKeys / 8][4], slope[kKeys / 8][4];
    tile_dots<D, H>(q, warp * 16, keys(stage), weight);
    tile_dots<D, H>(dy, warp * 16, values(stage), slope);
    rows.softcap.apply(weight);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int side = e / 2;
        const bool visible = !masked || lanes.attends(side, key + lane_column(n, e));
        const float p = exp2f(weight[n][e] * rows.scale * kLog2E - lse[side]);
        const float to_score = rows.scale * rows.softcap.slope(weight[n][e]);
        slope[n][e] = visible ? p * (slope[n][e] - delta[side]) * to_score : 0.0f;
      }
    tile_accumulate<D, H>(slope, keys(stage), dq);
    __syncthreads();
  }
  put_tile<H>(gradients.dq, query + warp * 16, column, dq, gradients.add_dq);
}

// rows_each: the rows of a block. tile_rows: rows of D columns in shared memory.
template <int D, class Kernel, class... Args>
void run(const char* name, cudaStream_t stream, Kernel kernel, std::int64_t rows, int rows_each,
         std::int64_t heads, int tile_rows, const Args&... args) {
  const int bytes = halves_of<D>(tile_rows) * static_cast<int>(sizeof(Half));
  reserve_shared(name, kernel, bytes);
  kernel<<<dim3(blocks_for(rows, rows_each), static_cast<unsigned>(heads)), kBlock,
           static_cast<std::size_t>(bytes), stream>>>(args...);
  launched(name);
}

template <int D, class H>
void forward(cudaStream_t stream, const Attention& op) {
  run<D>("attention", stream, forward_mma<D, H>, op.q.rows, kQueryTile, op.at.heads,
         kQueryTile + 4 * Tiling<D>::kForwardKeys, AttentionRows(op), View(op.y), View(op.lse));
}

template <int D, class H>
void backward(cudaStream_t stream, const Attention& op, const float* delta) {
  using Sizes = Tiling<D>;
  const AttentionRows rows(op);
  const AttentionGradients gradients(op, delta);
  if (op.dk || op.dv)
    run<D>("attention keys backward", stream, key_gradients_mma<D, H>, op.q.rows, Sizes::kKeys,
           op.at.kv_heads, 2 * Sizes::kKeys + 4 * Sizes::kQueries, rows, gradients);
  if (op.dq)
    run<D>("attention queries backward", stream, query_gradients_mma<D, H>, op.q.rows, kQueryTile,
           op.at.heads, 2 * kQueryTile + 4 * Sizes::kQueryKeys, rows, gradients);
}

template <class H>
void forward_in(cudaStream_t stream, const Attention& op) {
  switch (op.head_size()) {
    case 32:
      return forward<32, H>(stream, op);
    case 64:
      return forward<64, H>(stream, op);
    case 96:
      return forward<96, H>(stream, op);
    case 128:
      return forward<128, H>(stream, op);
    default:
      return forward<256, H>(stream, op);
  }
}

template <class H>
void backward_in(cudaStream_t stream, const Attention& op, const float* delta) {
  switch (op.head_size()) {
    case 32:
      return backward<32, H>(stream, op, delta);
    case 64:
      return backward<64, H>(stream, op, delta);
    case 96:
      return backward<96, H>(stream, op, delta);
    case 128:
      return backward<128, H>(stream, op, delta);
    default:
      return backward<256, H>(stream, op, delta);
  }
}

}  // namespace

void mma_attention_forward(cudaStream_t stream, const Attention& op) {
  (op.q.dtype == DType::f16 ? forward_in<__half> : forward_in<Half>)(stream, op);
}

void mma_attention_backward(cudaStream_t stream, const Attention& op, const float* delta) {
  (op.q.dtype == DType::f16 ? backward_in<__half> : backward_in<Half>)(stream, op, delta);
}

}  // namespace thimble::cuda
