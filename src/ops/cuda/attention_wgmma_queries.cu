// dq on Hopper: queries stay, keys pass by. While a tile's scores and slopes are made, the tile before is added up. What
// is known of every query is found on the way, for the keys' gradients, too.
#include "ops/cuda/attention_wgmma.cuh"

namespace thimble::cuda {

namespace {

// Where facts come from: lse, and delta[n, h] = dy . y, what softmax's backward subtracts.
struct FactRows {
  View dy, y, lse;
};

// Of a lane's two rows of a head, and for whoever comes later. The four lanes of a row have D / 4 columns each; all loads
// are on their way before the first is waited for.
template <int D>
__device__ void find_facts(const FactRows& from, const Facts& facts, int head, const int (&row)[2],
                           QueryFact (&fact)[2]) {
  constexpr int kPacks = D / 32;
  Raw dy[2][kPacks] = {}, y[2][kPacks] = {};
  float lse[2] = {INFINITY, INFINITY};  // beyond the last row nothing is seen
  const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    if (row[side] >= from.y.rows) continue;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int column = head * D + (4 * p + lane) * kVector;
      dy[side][p] = fetch(from.dy, row[side], column, true);
      y[side][p] = fetch(from.y, row[side], column, true);
    }
    lse[side] = load_one(from.lse, row[side], head);
  }
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    float dot = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      float a[kVector], b[kVector];
      unpack(dy[side][p], true, a);
      unpack(y[side][p], true, b);
#pragma unroll
      for (int i = 0; i < kVector; ++i) dot = fmaf(a[i], b[i], dot);
    }
    fact[side] = {lse[side] * kLog2E, row_sum(dot)};
    if (lane == 0 && row[side] < facts.stride) *facts.of(head, row[side]) = fact[side];
  }
}

template <class Cut>
__global__ void __launch_bounds__(kHopperBlock, Cut::blocks)
    query_gradients_wgmma(const __grid_constant__ CUtensorMap q_map,
                          const __grid_constant__ CUtensorMap dy_map,
                          const __grid_constant__ CUtensorMap k_map,
                          const __grid_constant__ CUtensorMap v_map, const AttentionRows rows,
                          const FactRows known, const Facts facts, const View dq, const bool add,
                          const Deal deal) {
  if constexpr (kHopper) {
    constexpr int D = Cut::D, N = Cut::N;
    using Queries = typename Cut::Staying;
    using Keys = typename Cut::Passing;
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ Ring<Cut::stages> ring;
    __shared__ Barrier queries_there;
    const std::uint32_t base = shared_place(memory), passing = base + Cut::kStayingBytes;
    if (deal.row(true) >= rows.rows) return;
    const QueryWalk<D, N> walk(rows, deal);
    const int together = kWarpgroups * kGroupRows / deal.tile_rows;
    const int group = warpgroup(), query = walk.query, begin = walk.begin;
    const bool leads = threadIdx.x == 0;
    const auto keys = [&](int tile) {
      return passing + static_cast<std::uint32_t>(ring.stage(tile) * Cut::kStageBytes);
    };
    const auto fetch = [&](int tile) {
      if (!leads || tile >= walk.tiles) return;
      Barrier& there = ring.claim(tile, Cut::kStageBytes);
      fetch_rows<Keys>(keys(tile), k_map, walk.kv_column, begin + tile * N, there);
      fetch_rows<Keys>(keys(tile) + Keys::kBytes, v_map, walk.kv_column, begin + tile * N, there);
    };
    if (leads) {
      prefetch_map(q_map);
      prefetch_map(dy_map);
      prefetch_map(k_map);
      prefetch_map(v_map);
      ring.start(kHopperBlock / kWarp);
      queries_there.start(1);
      show_barriers();
    }
    __syncthreads();
    if (leads) {
      queries_there.expect(Cut::kStayingBytes);
      for (int g = 0; g < kWarpgroups; ++g) {
        const std::uint32_t to = base + static_cast<std::uint32_t>(g * 2 * Queries::kBytes);
        const int column = (walk.block_head + g % together) * D;
        const int row = walk.block_query + g / together * kGroupRows;
        fetch_rows<Queries>(to, q_map, column, row, queries_there);
        fetch_rows<Queries>(to + Queries::kBytes, dy_map, column, row, queries_there);
      }
    }
    for (int tile = 0; tile < Cut::ahead; ++tile) fetch(tile);
    const QueryRows lanes(rows, query);
    QueryFact fact[2];
    find_facts<D>(known, facts, walk.head, lanes.n, fact);

    const std::uint32_t q = base + static_cast<std::uint32_t>(group * 2 * Queries::kBytes);
    const std::uint32_t dy = q + Queries::kBytes;
    std::uint32_t q_left[D / 16][4], dy_left[D / 16][4];
    queries_there.wait(0);
    if constexpr (Cut::left_stays) {
      load_left<D>(q, q_left);
      load_left<D>(dy, dy_left);
    }
    const auto pass_by = [&](int tile) {
      fetch(tile + Cut::ahead);
      ring.wait(tile);
      ring.free(tile);
    };
    for (int tile = 0; tile < walk.mine; ++tile) pass_by(tile);

    const float scale = rows.scale * kLog2E;
    float result[D / 2] = {};
    std::uint32_t slopes[N / 16][4];
    const auto start = [&](int tile, float(&score)[N / 2], float(&slope)[N / 2]) {
      fetch(tile + Cut::ahead);
      __syncwarp();
      ring.wait(tile);
      begin_products();
      if constexpr (Cut::left_stays) {
        dot_rows<Keys>(score, q_left, keys(tile));
        end_products();
        dot_rows<Keys>(slope, dy_left, keys(tile) + Keys::kBytes);
      } else {
        dot_rows<D, Queries, Keys>(score, q, keys(tile));
        end_products();
        dot_rows<D, Queries, Keys>(slope, dy, keys(tile) + Keys::kBytes);
      }
      end_products();
    };
    const auto weigh = [&](int tile, float(&score)[N / 2]) {
      lanes.mask(score, query, begin + tile * N);
#pragma unroll
      for (int i = 0; i < N / 2; ++i) score[i] = power_of_2(fmaf(score[i], scale, -fact[i / 2 % 2].x));
    };
    const auto slope_of = [&](float(&score)[N / 2], float(&slope)[N / 2]) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) slope[i] = score[i] * (slope[i] - fact[i / 2 % 2].y);
    };
    {
      float score[N / 2], slope[N / 2];
      start(walk.mine, score, slope);
      wait_for_products<1>();
      hold(score);
      weigh(walk.mine, score);
      wait_for_products<0>();
      hold(slope);
      slope_of(score, slope);
      pack_left(slope, slopes);
    }
    for (int tile = walk.mine + 1; tile < walk.past; ++tile) {
      float score[N / 2], slope[N / 2];
      start(tile, score, slope);
      add_weighted<Keys>(result, slopes, keys(tile - 1));
      end_products();
      wait_for_products<2>();
      hold(score);
      weigh(tile, score);
      hold(score);
      wait_for_products<1>();
      hold(slope);
      slope_of(score, slope);
      hold(slope);
      wait_for_products<0>();
      hold(result);
      hold(slopes);
      ring.free(tile - 1);
      pack_left(slope, slopes);
    }
    begin_products();
    add_weighted<Keys>(result, slopes, keys(walk.past - 1));
    end_products();
    wait_for_products<0>();
    hold(result);
    ring.free(walk.past - 1);
    for (int tile = walk.past; tile < walk.tiles; ++tile) pass_by(tile);
#pragma unroll
    for (int i = 0; i < D / 2; ++i) result[i] *= rows.scale;
    if (dq) put_rows<D>(dq, query, walk.head * D, result, memory + group * 2 * Queries::kBytes, add);
  }
}

template <class Cut>
void gradients(cudaStream_t stream, const Attention& op, const Facts& facts) {
  const AttentionRows rows(op);
  const int together = op.group() % kWarpgroups == 0 ? kWarpgroups : 1;
  const Deal deal(op.q.rows, op.at.heads / together, kWarpgroups * kGroupRows / together);
  run_hopper("attention queries backward", stream, query_gradients_wgmma<Cut>, deal.blocks, Cut::kBytes,
             tensor_map(rows.q, Cut::D, kGroupRows), tensor_map(View(op.dy), Cut::D, kGroupRows),
             tensor_map(rows.k, Cut::D, Cut::N), tensor_map(rows.v, Cut::D, Cut::N), rows,
             FactRows{View(op.dy), View(op.y), View(op.lse)}, facts, View(op.dq), op.add_dq, deal);
}

}  // namespace

void wgmma_query_gradients(cudaStream_t stream, const Attention& op, const Facts& facts) {
  switch (op.head_size()) {
    case 32:
      return gradients<BackwardCut<32, 64, 2, false, 4, 2>>(stream, op, facts);
    case 64:
      return gradients<BackwardCut<64, 128, 1, true, 3, 1>>(stream, op, facts);
    default:
      return gradients<BackwardCut<128, 64, 1, false, 4, 2>>(stream, op, facts);
  }
}

}  // namespace thimble::cuda
