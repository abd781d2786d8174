// Attention forward on Hopper, and the tensor maps of all Hopper kernels. The four warpgroups (two
// blocks) of a multiprocessor overlap: while some wait for scores, others compute weights.
#include "ops/cuda/attention_wgmma.cuh"

namespace thimble::cuda {

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Looked up through the runtime, because the plugin is not linked with the driver.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = {};
  checked(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
      "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess)
    refuse("expected the driver to have cuTensorMapEncodeTiled", found);
  return reinterpret_cast<Encode>(function);
}

}  // namespace

CUtensorMap tensor_map(const View& view, int size, int rows) {
  static const Encode encode = find_encode();
  const int columns = size < 64 ? size : 64;
  const std::int64_t stride = view.rows > 1 ? view.stride : view.cols;
  const cuuint64_t extent[2] = {static_cast<cuuint64_t>(view.cols), static_cast<cuuint64_t>(view.rows)};
  const cuuint64_t row_bytes[1] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(columns), static_cast<cuuint32_t>(rows)};
  const cuuint32_t steps[2] = {1, 1};
  CUtensorMap map = {};
  const CUresult status = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, view.data, extent, row_bytes, box,
                                 steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) refuse("expected cuTensorMapEncodeTiled to succeed", status);
  return map;
}

namespace {

// Turns a tile of scores into weights. `keep` becomes the factor for the results so far.
template <int R>
__device__ void online_softmax(float (&score)[R], float scale, float (&highest)[2], float (&sum)[2],
                               float (&keep)[2]) {
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    float top = highest[side];
#pragma unroll
    for (int i = 2 * side; i < R; i += 4) top = fmaxf(top, fmaxf(score[i], score[i + 1]));
    top = row_max(top);
    // Products are rounded explicitly, here and in lse, so `keep` is exactly 1 if the maximum did
    // not change. If all scores so far are masked, -inf - -inf would be NaN; use base 0, which
    // makes `keep` 0.
    const float base = top == -INFINITY ? 0.0f : __fmul_rn(top, scale);
    keep[side] = power_of_2(__fmul_rn(highest[side], scale) - base);
    float added = 0;
#pragma unroll
    for (int i = 2 * side; i < R; i += 4)
#pragma unroll
      for (int j = i; j < i + 2; ++j) added += score[j] = power_of_2(fmaf(score[j], scale, -base));
    sum[side] = sum[side] * keep[side] + added;
    highest[side] = top;
  }
}

template <int R>
__device__ void rescale(float (&result)[R], const float (&keep)[2]) {
  // The common case: the maximum of a row is found early.
  if (!__any_sync(~0u, keep[0] != 1 || keep[1] != 1)) return;
#pragma unroll
  for (int i = 0; i < R; ++i) result[i] *= keep[i / 2 % 2];
}

template <class Tiling>
__global__ void __launch_bounds__(kHopperBlock, Tiling::blocks)
    forward_wgmma(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
                  const __grid_constant__ CUtensorMap v_map, const AttentionRows rows, const View y,
                  const View lse, const BlockOrder order) {
  if constexpr (kHopper) {
    constexpr int D = Tiling::D, N = Tiling::N;
    using Queries = typename Tiling::Queries;
    using Keys = typename Tiling::Keys;
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ Ring<Tiling::stages> ring;
    __shared__ Barrier queries_ready;
    const std::uint32_t base = smem_address(memory), streamed = base + kWarpgroups * Queries::kBytes;
    if (order.row(true) >= rows.rows) return;
    const QueryWalk<D, N> walk(rows, order);
    const int together = kWarpgroups * kGroupRows / order.tile_rows;
    const int group = warpgroup(), query = walk.query, begin = walk.begin;
    const bool is_leader = threadIdx.x == 0;
    const auto fetch = [&](int tile) {
      if (!is_leader || tile >= walk.tiles) return;
      Barrier& ready = ring.claim(tile, 2 * Keys::kBytes);
      const std::uint32_t to = streamed + static_cast<std::uint32_t>(ring.stage(tile) * 2 * Keys::kBytes);
      fetch_rows<Keys>(to, k_map, walk.kv_column, begin + tile * N, ready);
      fetch_rows<Keys>(to + Keys::kBytes, v_map, walk.kv_column, begin + tile * N, ready);
    };
    if (is_leader) {
      prefetch_map(q_map);
      prefetch_map(k_map);
      prefetch_map(v_map);
      ring.start(kHopperBlock / kWarp);
      queries_ready.start(1);
      show_barriers();
    }
    __syncthreads();
    if (is_leader) {
      queries_ready.expect(kWarpgroups * Queries::kBytes);
      for (int g = 0; g < kWarpgroups; ++g)
        fetch_rows<Queries>(base + static_cast<std::uint32_t>(g * Queries::kBytes), q_map,
                            (walk.block_head + g % together) * D,
                            walk.block_query + g / together * kGroupRows, queries_ready);
    }
    for (int tile = 0; tile < Tiling::ahead; ++tile) fetch(tile);
    const QueryRows lanes(rows, query);

    const std::uint32_t my_queries = base + static_cast<std::uint32_t>(group * Queries::kBytes);
    std::uint32_t left[D / 16][4];
    queries_ready.wait(0);
    if constexpr (Tiling::q_in_registers) load_left<D>(my_queries, left);

    const auto skip_tile = [&](int tile) {
      fetch(tile + Tiling::ahead);
      ring.wait(tile);
      ring.free(tile);
    };
    for (int tile = 0; tile < walk.first_tile; ++tile) skip_tile(tile);

    const float scale = rows.scale * kLog2E;
    float result[D / 2] = {}, highest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, keep[2];
    std::uint32_t weights[N / 16][4];
    const auto keys = [&](int tile) {
      return streamed + static_cast<std::uint32_t>(ring.stage(tile) * 2 * Keys::kBytes);
    };
    const auto start_scores = [&](int tile, float(&score)[N / 2]) {
      fetch(tile + Tiling::ahead);
      __syncwarp();
      ring.wait(tile);
      begin_products();
      if constexpr (Tiling::q_in_registers)
        dot_rows<Keys>(score, left, keys(tile));
      else
        dot_rows<D, Queries, Keys>(score, my_queries, keys(tile));
      end_products();
    };
    {
      float score[N / 2];
      start_scores(walk.first_tile, score);
      wait_for_products<0>();
      hold(score);
      lanes.mask(score, query, begin + walk.first_tile * N);
      online_softmax(score, scale, highest, sum, keep);
      pack_left(score, weights);
    }
    for (int tile = walk.first_tile + 1; tile < walk.end_tile; ++tile) {
      float score[N / 2];
      start_scores(tile, score);
      add_weighted<Keys>(result, weights, keys(tile - 1) + Keys::kBytes);
      end_products();
      wait_for_products<1>();
      hold(score);
      lanes.mask(score, query, begin + tile * N);
      online_softmax(score, scale, highest, sum, keep);
      hold(score);
      wait_for_products<0>();
      hold(result);
      hold(weights);
      ring.free(tile - 1);
      rescale(result, keep);
      pack_left(score, weights);
    }
    begin_products();
    add_weighted<Keys>(result, weights, keys(walk.end_tile - 1) + Keys::kBytes);
    end_products();
    wait_for_products<0>();
    hold(result);
    ring.free(walk.end_tile - 1);
    for (int tile = walk.end_tile; tile < walk.tiles; ++tile) skip_tile(tile);
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      sum[side] = row_sum(sum[side]);
      const float share = 1 / sum[side];
#pragma unroll
      for (int i = 2 * side; i < D / 2; i += 4) result[i] *= share, result[i + 1] *= share;
      if (threadIdx.x % 4 == 0 && lanes.n[side] < rows.rows)
        store_one(lse, lanes.n[side], walk.head, (__fmul_rn(highest[side], scale) + log2f(sum[side])) * kLn2);
    }
    put_rows<D>(y, query, walk.head * D, result, memory + group * Queries::kBytes, false);
  }
}

template <class Tiling>
void forward(cudaStream_t stream, const Attention& op) {
  const AttentionRows rows(op);
  const int together = op.group() % kWarpgroups == 0 ? kWarpgroups : 1;
  const BlockOrder order(op.q.rows, op.at.heads / together, kGroupRows * kWarpgroups / together);
  run_hopper("attention", stream, forward_wgmma<Tiling>, order.blocks, Tiling::kBytes,
             tensor_map(rows.q, Tiling::D, kGroupRows), tensor_map(rows.k, Tiling::D, Tiling::N),
             tensor_map(rows.v, Tiling::D, Tiling::N), rows, View(op.y), View(op.lse), order);
}

}  // namespace

void wgmma_attention_forward(cudaStream_t stream, const Attention& op) {
  switch (op.head_size()) {
    case 32:
      return forward<ForwardTiling<32, 64, 2, true, 4, 2>>(stream, op);
    case 64:
      return forward<ForwardTiling<64, 64, 2, true, 4, 2>>(stream, op);
    default:
      return forward<ForwardTiling<128, 128, 1, false, 3, 1>>(stream, op);
  }
}

}  // namespace thimble::cuda
