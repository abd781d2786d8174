// A block has 64 rows of a prompt and one head, and loops over tiles of keys and values,
// prefetching one tile. As attention_mma.cu, with keys from a slot.
#include "ops/cuda/attention.h"

#include "ops/cuda/mma.cuh"

namespace thimble::cuda {

namespace {

constexpr int kWarps = 4, kBlock = kWarps * kWarp;  // each warp has 16 rows
constexpr float kLog2E = 1.4426950408889634f;

// Keys of a tile: results of large heads need more registers, and their tiles more shared memory.
template <int D>
constexpr int kKeysOf = D > 128 ? 32 : 64;

struct Prompt {
  View q, k_cache, v_cache, y;
  Ints slot, position;
  std::int32_t group, context, window;  // no window: as long as the context
  float scale;
  Softcap softcap;
};

// The rows of a slot before `end`.
__device__ View slot_rows(const View& cache, std::int64_t first, std::int64_t end) {
  View view = cache;
  view.data = static_cast<Half*>(cache.data) + first * cache.stride;
  view.rows = end;
  return view;
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

// Turns scores of the keys from `key` on into weights; a row attends to `window` keys up to `last`.
template <int T>
__device__ void compute_weights(float (&score)[T][4], int key, const int (&last)[2], int window, float scale,
                                float (&highest)[2], float (&sum)[2], float (&keep)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    float top = highest[side];
#pragma unroll
    for (int n = 0; n < T; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& s = score[n][2 * side + e];
        const int m = key + n * 8 + 2 * lane + e;
        s = m <= last[side] && m > last[side] - window ? s * scale : -INFINITY;
        top = fmaxf(top, s);
      }
    const float now = row_max(top);
    // All masked so far: exp(-inf - -inf) would be NaN.
    const float base = now == -INFINITY ? 0.0f : now;
    keep[side] = exp2f(highest[side] - base);
    float added = 0;
#pragma unroll
    for (int n = 0; n < T; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) added += score[n][2 * side + e] = exp2f(score[n][2 * side + e] - base);
    sum[side] = sum[side] * keep[side] + added;
    highest[side] = now;
  }
}

template <int D>
__global__ void __launch_bounds__(kBlock) attend_tile(Prompt p) {
  constexpr int kKeys = kKeysOf<D>, kTileHalves = kKeys * kPitch<D>;
  extern __shared__ __align__(16) Half memory[];
  const std::int64_t tile = std::int64_t{gridDim.x - 1 - blockIdx.x} * kPromptTile;
  if (!is_prompt_tile(p.slot, p.position, tile, p.q.rows)) return;
  const int head = static_cast<int>(blockIdx.y), warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t column = std::int64_t{head} * D, kv_column = std::int64_t{head / p.group} * D;
  int last[2], end = 0;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const std::int64_t n = tile + warp * 16 + lane / 4 + 8 * side;
    last[side] = n < p.q.rows && p.slot[n] >= 0 ? p.position[n] : -1;
  }
  for (int i = 0; i < kPromptTile; ++i)
    if (tile + i < p.q.rows && p.slot[tile + i] >= 0) end = p.position[tile + i] + 1;
  const int begin = max(0, p.position[tile] - p.window + 1) / kKeys * kKeys;
  const std::int64_t first = std::int64_t{p.slot[tile]} * p.context;
  View k = slot_rows(p.k_cache, first, end), v = slot_rows(p.v_cache, first, end);

  Half *const q = memory, *const streamed = q + kPromptTile * kPitch<D>;
  const auto keys = [&](int stage) { return streamed + stage * kTileHalves; };
  const auto values = [&](int stage) { return streamed + (2 + stage) * kTileHalves; };
  // A slot with a window may be a ring, which begins again at a tile.
  const auto fetch = [&](int key, int stage) {
    const int row = key % p.context;
    k.rows = v.rows = row + end - key;
    fetch_tile<D, kKeys, kBlock>(keys(stage), k, row, kv_column);
    fetch_tile<D, kKeys, kBlock>(values(stage), v, row, kv_column);
    end_of_fetch();
  };
  fetch_tile<D, kPromptTile, kBlock>(q, p.q, tile, column);
  fetch(begin, 0);
  float result[D / 8][4] = {}, highest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  for (int key = begin; key < end; key += kKeys) {
    const int stage = (key - begin) / kKeys % 2;
    if (key + kKeys < end) {
      fetch(key + kKeys, 1 - stage);
      wait_for_fetch<1>();
    } else {
      wait_for_fetch<0>();
    }
    __syncthreads();
    float score[kKeys / 8][4], keep[2];
    tile_dots<D>(q, warp * 16, keys(stage), score);
    p.softcap.apply(score);
    compute_weights(score, key, last, p.window, p.scale * kLog2E, highest, sum, keep);
#pragma unroll
    for (auto& part : result) part[0] *= keep[0], part[1] *= keep[0], part[2] *= keep[1], part[3] *= keep[1];
    tile_accumulate<D>(score, values(stage), result);
    __syncthreads();
  }
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const float total = row_sum(sum[side]);
    const float factor = last[side] < 0 ? 0.0f : 1.0f / total;
#pragma unroll
    for (auto& part : result) part[2 * side] *= factor, part[2 * side + 1] *= factor;
  }
  put_tile(p.y, tile + warp * 16, column, result, false);
}

template <int D>
void launch(cudaStream_t stream, const CachedAttention& op) {
  constexpr auto bytes = static_cast<int>((kPromptTile + 4 * kKeysOf<D>)*kPitch<D> * sizeof(Half));
  reserve_shared("cached_attention of prompts", attend_tile<D>, bytes);
  const Prompt prompt{View(op.q),
                      View(op.k_cache),
                      View(op.v_cache),
                      View(op.y),
                      Ints(op.slot),
                      Ints(op.position),
                      static_cast<std::int32_t>(op.group()),
                      op.at.context,
                      op.at.window > 0 ? op.at.window : op.at.context,
                      op.at.scale,
                      Softcap(op.at.softcap, op.at.scale)};
  const dim3 grid(blocks_for(op.q.rows, kPromptTile), static_cast<unsigned>(op.at.heads));
  attend_tile<D><<<grid, kBlock, bytes, stream>>>(prompt);
  launched("cached_attention of prompts");
}

}  // namespace

bool supports_prompt_tiles(const CachedAttention& op) {
  const std::int64_t D = op.head_size();
  return op.q.dtype == DType::bf16 && (D == 32 || D == 64 || D == 96 || D == 128 || D == 256) &&
         vectorized(op.q, {op.k_cache, op.v_cache, op.y});
}

void attend_prompt_tiles(const Context& context, const CachedAttention& op) {
  const cudaStream_t stream = stream_of(context);
  switch (op.head_size()) {
    case 32:
      return launch<32>(stream, op);
    case 64:
      return launch<64>(stream, op);
    case 96:
      return launch<96>(stream, op);
    case 128:
      return launch<128>(stream, op);
    default:
      return launch<256>(stream, op);
  }
}

}  // namespace thimble::cuda
