// Attention forward on Hopper, and the tensor maps of all its kernels. Four warpgroups on a multiprocessor (two blocks)
// take turns: while some wait for scores, the others make weights of theirs.
#include "ops/cuda/attention_wgmma.cuh"

namespace thimble::cuda {

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, asked of the runtime: the plugin is not linked with the driver.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = {};
  checked(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
      "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess) refuse("the driver has no cuTensorMapEncodeTiled", found);
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
  if (status != CUDA_SUCCESS) refuse("cuTensorMapEncodeTiled failed", status);
  return map;
}

namespace {

// One tile of scores becomes weights; `keep` is what the results so far are to be multiplied by.
template <int R>
__device__ void online_softmax(float (&score)[R], float scale, float (&highest)[2], float (&sum)[2],
                               float (&keep)[2]) {
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    float top = highest[side];
#pragma unroll
    for (int i = 2 * side; i < R; i += 4) top = fmaxf(top, fmaxf(score[i], score[i + 1]));
    top = row_max(top);
    // Products are rounded before they are used, here and in lse: where the maximum stays, `keep` is 2^0 = 1 to the bit.
    // Nothing seen yet: -inf - -inf would be NaN, and `keep` is 0.
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
  if (!__any_sync(~0u, keep[0] != 1 || keep[1] != 1)) return;  // a row's highest score is soon found
#pragma unroll
  for (int i = 0; i < R; ++i) result[i] *= keep[i / 2 % 2];
}

template <class Cut>
__global__ void __launch_bounds__(kHopperBlock, Cut::blocks)
    forward_wgmma(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
                  const __grid_constant__ CUtensorMap v_map, const AttentionRows rows, const View y,
                  const View lse, const Deal deal) {
  if constexpr (kHopper) {
    constexpr int D = Cut::D, N = Cut::N;
    using Queries = typename Cut::Queries;
    using Keys = typename Cut::Keys;
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ Ring<Cut::stages> ring;
    __shared__ Barrier queries_there;
    const std::uint32_t base = shared_place(memory), passing = base + kWarpgroups * Queries::kBytes;
    if (deal.row(true) >= rows.rows) return;
    const QueryWalk<D, N> walk(rows, deal);
    const int together = kWarpgroups * kGroupRows / deal.tile_rows;
    const int group = warpgroup(), query = walk.query, begin = walk.begin;
    const bool leads = threadIdx.x == 0;
    const auto fetch = [&](int tile) {
      if (!leads || tile >= walk.tiles) return;
      Barrier& there = ring.claim(tile, 2 * Keys::kBytes);
      const std::uint32_t to = passing + static_cast<std::uint32_t>(ring.stage(tile) * 2 * Keys::kBytes);
      fetch_rows<Keys>(to, k_map, walk.kv_column, begin + tile * N, there);
      fetch_rows<Keys>(to + Keys::kBytes, v_map, walk.kv_column, begin + tile * N, there);
    };
    if (leads) {
      prefetch_map(q_map);
      prefetch_map(k_map);
      prefetch_map(v_map);
      ring.start(kHopperBlock / kWarp);
      queries_there.start(1);
      show_barriers();
    }
    __syncthreads();
    if (leads) {
      queries_there.expect(kWarpgroups * Queries::kBytes);
      for (int g = 0; g < kWarpgroups; ++g)
        fetch_rows<Queries>(base + static_cast<std::uint32_t>(g * Queries::kBytes), q_map,
                            (walk.block_head + g % together) * D,
                            walk.block_query + g / together * kGroupRows, queries_there);
    }
    for (int tile = 0; tile < Cut::ahead; ++tile) fetch(tile);
    const QueryRows lanes(rows, query);

    const std::uint32_t my_queries = base + static_cast<std::uint32_t>(group * Queries::kBytes);
    std::uint32_t left[D / 16][4];
    queries_there.wait(0);
    if constexpr (Cut::q_in_registers) load_left<D>(my_queries, left);

    const auto pass_by = [&](int tile) {
      fetch(tile + Cut::ahead);
      ring.wait(tile);
      ring.free(tile);
    };
    for (int tile = 0; tile < walk.mine; ++tile) pass_by(tile);

    const float scale = rows.scale * kLog2E;
    float result[D / 2] = {}, highest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, keep[2];
    std::uint32_t weights[N / 16][4];
    const auto keys = [&](int tile) {
      return passing + static_cast<std::uint32_t>(ring.stage(tile) * 2 * Keys::kBytes);
    };
    const auto start_scores = [&](int tile, float(&score)[N / 2]) {
      fetch(tile + Cut::ahead);
      __syncwarp();
      ring.wait(tile);
      begin_products();
      if constexpr (Cut::q_in_registers)
        dot_rows<Keys>(score, left, keys(tile));
      else
        dot_rows<D, Queries, Keys>(score, my_queries, keys(tile));
      end_products();
    };
    {
      float score[N / 2];
      start_scores(walk.mine, score);
      wait_for_products<0>();
      hold(score);
      lanes.mask(score, query, begin + walk.mine * N);
      online_softmax(score, scale, highest, sum, keep);
      pack_left(score, weights);
    }
    for (int tile = walk.mine + 1; tile < walk.past; ++tile) {
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
    add_weighted<Keys>(result, weights, keys(walk.past - 1) + Keys::kBytes);
    end_products();
    wait_for_products<0>();
    hold(result);
    ring.free(walk.past - 1);
    for (int tile = walk.past; tile < walk.tiles; ++tile) pass_by(tile);
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

template <class Cut>
void forward(cudaStream_t stream, const Attention& op) {
  const AttentionRows rows(op);
  const int together = op.group() % kWarpgroups == 0 ? kWarpgroups : 1;
  const Deal deal(op.q.rows, op.at.heads / together, kGroupRows * kWarpgroups / together);
  run_hopper("attention", stream, forward_wgmma<Cut>, deal.blocks, Cut::kBytes,
             tensor_map(rows.q, Cut::D, kGroupRows), tensor_map(rows.k, Cut::D, Cut::N),
             tensor_map(rows.v, Cut::D, Cut::N), rows, View(op.y), View(op.lse), deal);
}

}  // namespace

void wgmma_attention_forward(cudaStream_t stream, const Attention& op) {
  switch (op.head_size()) {
    case 32:
      return forward<ForwardCut<32, 64, 2, true, 4, 2>>(stream, op);
    case 64:
      return forward<ForwardCut<64, 64, 2, true, 4, 2>>(stream, op);
    default:
      return forward<ForwardCut<128, 128, 1, false, 3, 1>>(stream, op);
  }
}

}  // namespace thimble::cuda
