// Attention backward on Hopper, in two kernels. Scores are computed twice: 7 products instead of 5,
// but no f32 sums of dq are read and written per key tile, which a fixed order of addition would
// require.
#include "ops/cuda/attention_wgmma.cuh"

namespace thimble::cuda {

namespace {

// Query facts of a head are contiguous. Past the last row, lse is infinite, so all weights are 0.
struct Facts {
  QueryFact* data;
  std::int64_t stride;  // rows per head, padded to whole tiles

  __device__ QueryFact* of(int head, std::int64_t row) const { return data + head * stride + row; }
};

// dq: each block has queries and loops over keys. The scores and slopes of a tile are computed
// while the previous tile is accumulated. The kernel also computes the facts of its queries, which
// the key gradients need.

// Inputs of the facts: lse, and delta[n, h] = dy . y, which the softmax backward subtracts.
struct FactRows {
  View dy, y, lse;
};

// Computes the facts of a lane's two rows of a head, and stores them for the key gradients. The
// four lanes of a row have D / 4 columns each; all loads are issued before the first result is
// used.
template <int D>
__device__ void compute_facts(const FactRows& from, const Facts& facts, int head, const int (&row)[2],
                              QueryFact (&fact)[2]) {
  constexpr int kPacks = D / 32;
  Raw dy[2][kPacks] = {}, y[2][kPacks] = {};
  float lse[2] = {INFINITY, INFINITY};  // past the last row, weights are 0
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

template <class Tiling>
__global__ void __launch_bounds__(kHopperBlock, Tiling::blocks)
    query_gradients_wgmma(const __grid_constant__ CUtensorMap q_map,
                          const __grid_constant__ CUtensorMap dy_map,
                          const __grid_constant__ CUtensorMap k_map,
                          const __grid_constant__ CUtensorMap v_map, const AttentionRows rows,
                          const FactRows known, const Facts facts, const View dq, const bool add,
                          const BlockOrder order) {
  if constexpr (kHopper) {
    constexpr int D = Tiling::D, N = Tiling::N;
    using Queries = typename Tiling::Resident;
    using Keys = typename Tiling::Streamed;
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ Ring<Tiling::stages> ring;
    __shared__ Barrier queries_ready;
    const std::uint32_t base = smem_address(memory), streamed = base + Tiling::kResidentBytes;
    if (order.row(true) >= rows.rows) return;
    const QueryWalk<D, N> walk(rows, order);
    const int together = kWarpgroups * kGroupRows / order.tile_rows;
    const int group = warpgroup(), query = walk.query, begin = walk.begin;
    const bool is_leader = threadIdx.x == 0;
    const auto keys = [&](int tile) {
      return streamed + static_cast<std::uint32_t>(ring.stage(tile) * Tiling::kStageBytes);
    };
    const auto fetch = [&](int tile) {
      if (!is_leader || tile >= walk.tiles) return;
      Barrier& ready = ring.claim(tile, Tiling::kStageBytes);
      fetch_rows<Keys>(keys(tile), k_map, walk.kv_column, begin + tile * N, ready);
      fetch_rows<Keys>(keys(tile) + Keys::kBytes, v_map, walk.kv_column, begin + tile * N, ready);
    };
    if (is_leader) {
      prefetch_map(q_map);
      prefetch_map(dy_map);
      prefetch_map(k_map);
      prefetch_map(v_map);
      ring.start(kHopperBlock / kWarp);
      queries_ready.start(1);
      show_barriers();
    }
    __syncthreads();
    if (is_leader) {
      queries_ready.expect(Tiling::kResidentBytes);
      for (int g = 0; g < kWarpgroups; ++g) {
        const std::uint32_t to = base + static_cast<std::uint32_t>(g * 2 * Queries::kBytes);
        const int column = (walk.block_head + g % together) * D;
        const int row = walk.block_query + g / together * kGroupRows;
        fetch_rows<Queries>(to, q_map, column, row, queries_ready);
        fetch_rows<Queries>(to + Queries::kBytes, dy_map, column, row, queries_ready);
      }
    }
    for (int tile = 0; tile < Tiling::ahead; ++tile) fetch(tile);
    const QueryRows lanes(rows, query);
    QueryFact fact[2];
    compute_facts<D>(known, facts, walk.head, lanes.n, fact);

    const std::uint32_t q = base + static_cast<std::uint32_t>(group * 2 * Queries::kBytes);
    const std::uint32_t dy = q + Queries::kBytes;
    std::uint32_t q_left[D / 16][4], dy_left[D / 16][4];
    queries_ready.wait(0);
    if constexpr (Tiling::keeps_left) {
      load_left<D>(q, q_left);
      load_left<D>(dy, dy_left);
    }
    const auto skip_tile = [&](int tile) {
      fetch(tile + Tiling::ahead);
      ring.wait(tile);
      ring.free(tile);
    };
    for (int tile = 0; tile < walk.first_tile; ++tile) skip_tile(tile);

    const float scale = rows.scale * kLog2E;
    float result[D / 2] = {};
    std::uint32_t slopes[N / 16][4];
    const auto start = [&](int tile, float(&score)[N / 2], float(&slope)[N / 2]) {
      fetch(tile + Tiling::ahead);
      __syncwarp();
      ring.wait(tile);
      begin_products();
      if constexpr (Tiling::keeps_left) {
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
    const auto compute_weights = [&](int tile, float(&score)[N / 2]) {
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
      start(walk.first_tile, score, slope);
      wait_for_products<1>();
      hold(score);
      compute_weights(walk.first_tile, score);
      wait_for_products<0>();
      hold(slope);
      slope_of(score, slope);
      pack_left(slope, slopes);
    }
    for (int tile = walk.first_tile + 1; tile < walk.end_tile; ++tile) {
      float score[N / 2], slope[N / 2];
      start(tile, score, slope);
      add_weighted<Keys>(result, slopes, keys(tile - 1));
      end_products();
      wait_for_products<2>();
      hold(score);
      compute_weights(tile, score);
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
    add_weighted<Keys>(result, slopes, keys(walk.end_tile - 1));
    end_products();
    wait_for_products<0>();
    hold(result);
    ring.free(walk.end_tile - 1);
    for (int tile = walk.end_tile; tile < walk.tiles; ++tile) skip_tile(tile);
#pragma unroll
    for (int i = 0; i < D / 2; ++i) result[i] *= rows.scale;
    if (dq) put_rows<D>(dq, query, walk.head * D, result, memory + group * 2 * Queries::kBytes, add);
  }
}

template <class Tiling>
void run_query_gradients(cudaStream_t stream, const Attention& op, const Facts& facts) {
  const AttentionRows rows(op);
  const int together = op.group() % kWarpgroups == 0 ? kWarpgroups : 1;
  const BlockOrder order(op.q.rows, op.at.heads / together, kWarpgroups * kGroupRows / together);
  run_hopper("attention queries backward", stream, query_gradients_wgmma<Tiling>, order.blocks,
             Tiling::kBytes, tensor_map(rows.q, Tiling::D, kGroupRows),
             tensor_map(View(op.dy), Tiling::D, kGroupRows), tensor_map(rows.k, Tiling::D, Tiling::N),
             tensor_map(rows.v, Tiling::D, Tiling::N), rows, FactRows{View(op.dy), View(op.y), View(op.lse)},
             facts, View(op.dq), op.add_dq, order);
}

// Also fills the facts.
void wgmma_query_gradients(cudaStream_t stream, const Attention& op, const Facts& facts) {
  switch (op.head_size()) {
    case 32:
      return run_query_gradients<BackwardTiling<32, 64, 2, false, 4, 2>>(stream, op, facts);
    case 64:
      return run_query_gradients<BackwardTiling<64, 128, 1, true, 3, 1>>(stream, op, facts);
    default:
      return run_query_gradients<BackwardTiling<128, 64, 1, false, 4, 2>>(stream, op, facts);
  }
}

// dk and dv: each block has keys and loops over the queries of all heads of the group. Tiles have
// keys as rows and queries as columns: the transposed weights, which multiply dy and q.

// The first row from `from` on that does not attend to row `key`, searched by the whole block.
__device__ inline int first_row_past(const AttentionRows& rows, int from, int key) {
  int low = from, high = static_cast<int>(rows.rows);
  while (low < high) {
    const int step = (high - low + kHopperBlock - 1) / kHopperBlock, start = low;
    const int probe = start + static_cast<int>(threadIdx.x) * step;
    const int seen = __syncthreads_count(probe < high && rows.first_key(probe) <= key);
    if (seen == 0) break;
    low = start + (seen - 1) * step + 1;
    high = min(high, start + seen * step);
  }
  return low;
}

template <class Tiling>
__global__ void __launch_bounds__(kHopperBlock, Tiling::blocks)
    key_gradients_wgmma(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap dy_map,
                        const __grid_constant__ CUtensorMap k_map, const __grid_constant__ CUtensorMap v_map,
                        const AttentionRows rows, const Facts facts, const View dk, const View dv,
                        const bool add_dk, const bool add_dv, const BlockOrder order) {
  if constexpr (kHopper) {
    constexpr int D = Tiling::D, N = Tiling::N;
    using Keys = typename Tiling::Resident;
    using Queries = typename Tiling::Streamed;
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ Ring<Tiling::stages, true> ring;
    __shared__ Barrier keys_ready;
    __shared__ __align__(16) QueryFact shared_facts[Tiling::stages][N];
    const std::uint32_t base = smem_address(memory), streamed = base + Tiling::kResidentBytes;
    const int group = warpgroup(), kv_head = order.head(), block_key = order.row(false);
    if (block_key >= rows.rows) return;
    const int key = block_key + group * kGroupRows;
    const int last_key = min(block_key + kWarpgroups * kGroupRows, static_cast<int>(rows.rows)) - 1;
    const bool is_leader = threadIdx.x == 0;
    const auto queries = [&](int tile) {
      return streamed + static_cast<std::uint32_t>(ring.stage(tile) * Tiling::kStageBytes);
    };
    const auto fetch = [&](int tile, int head, int query) {
      Barrier& ready = ring.claim(tile, Tiling::kStageBytes + Tiling::kFactBytes);
      fetch_rows<Queries>(queries(tile), q_map, head * D, query, ready);
      fetch_rows<Queries>(queries(tile) + Queries::kBytes, dy_map, head * D, query, ready);
      fetch_bytes(smem_address(shared_facts[ring.stage(tile)]), facts.of(head, query), Tiling::kFactBytes,
                  ready);
    };
    if (is_leader) {
      prefetch_map(q_map);
      prefetch_map(dy_map);
      prefetch_map(k_map);
      prefetch_map(v_map);
      ring.start(kHopperBlock / kWarp);
      keys_ready.start(1);
      show_barriers();
      keys_ready.expect(Tiling::kResidentBytes);
      for (int g = 0; g < kWarpgroups; ++g) {
        const std::uint32_t to = base + static_cast<std::uint32_t>(g * 2 * Keys::kBytes);
        fetch_rows<Keys>(to, k_map, kv_head * D, block_key + g * kGroupRows, keys_ready);
        fetch_rows<Keys>(to + Keys::kBytes, v_map, kv_head * D, block_key + g * kGroupRows, keys_ready);
      }
    }
    // Queries before `free` attend to all keys of the block up to their own position; queries from
    // `end` on attend to none. The shuffles tell the compiler that the values are uniform in a
    // warp.
    const int free = __shfl_sync(~0u, first_row_past(rows, block_key, block_key), 0);
    const int end = __shfl_sync(~0u, first_row_past(rows, last_key, last_key), 0);
    const int tiles = (end - block_key + N - 1) / N, total = tiles * rows.group;
    int next_tile = 0, next_head = kv_head * rows.group, next_query = block_key;
    const auto fetch_next = [&] {
      if (!is_leader || next_tile >= total) return;
      fetch(next_tile++, next_head, next_query);
      next_query += N;
      if (next_query >= end) next_query = block_key, ++next_head;
    };
    for (int tile = 0; tile < Tiling::ahead; ++tile) fetch_next();
    __syncthreads();

    const std::uint32_t k = base + static_cast<std::uint32_t>(group * 2 * Keys::kBytes);
    const std::uint32_t v = k + Keys::kBytes;
    std::uint32_t k_left[D / 16][4], v_left[D / 16][4];
    keys_ready.wait(0);
    if constexpr (Tiling::keeps_left) {
      load_left<D>(k, k_left);
      load_left<D>(v, v_left);
    }
    const float scale = rows.scale * kLog2E;
    const int m = key + lane_row();  // and m + 8
    float k_result[D / 2] = {}, v_result[D / 2] = {};
    const auto mask = [&](float(&score)[N / 2], int query) {
      if (query < key + kGroupRows - 1) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i)
          if (m + i / 2 % 2 * 8 > query + lane_column(i)) score[i] = -INFINITY;
      }
      if (query + N > free) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
          const int n = min(query + lane_column(i), static_cast<int>(rows.rows) - 1);
          if (m + i / 2 % 2 * 8 < rows.first_key(n)) score[i] = -INFINITY;
        }
      }
    };
    int tile = 0, query = block_key;
    const auto next = [&] {
      ++tile, query += N;
      if (query >= end) query = block_key;
    };
    const auto skip_hidden = [&] {  // queries before all keys of this warpgroup
      for (; tile < total && query + N <= key; next()) {
        fetch_next();
        ring.wait(tile);
        ring.free(tile);
      }
    };
    std::uint32_t weights[N / 16][4], slopes[N / 16][4];
    const auto start = [&](float(&score)[N / 2], float(&slope)[N / 2]) {
      fetch_next();
      __syncwarp();
      ring.wait(tile);
      begin_products();
      if constexpr (Tiling::keeps_left) {
        dot_rows<Queries>(score, k_left, queries(tile));
        end_products();
        dot_rows<Queries>(slope, v_left, queries(tile) + Queries::kBytes);
      } else {
        dot_rows<D, Keys, Queries>(score, k, queries(tile));
        end_products();
        dot_rows<D, Keys, Queries>(slope, v, queries(tile) + Queries::kBytes);
      }
      end_products();
    };
    const auto compute_weights = [&](float(&score)[N / 2]) {
      mask(score, query);
#pragma unroll
      for (int i = 0; i < N / 2; i += 4) {
        const float4 two = *reinterpret_cast<const float4*>(&shared_facts[ring.stage(tile)][lane_column(i)]);
#pragma unroll
        for (int j = 0; j < 4; ++j)
          score[i + j] = power_of_2(fmaf(score[i + j], scale, j % 2 == 0 ? -two.x : -two.z));
      }
    };
    const auto slope_of = [&](const float(&score)[N / 2], float(&slope)[N / 2]) {
#pragma unroll
      for (int i = 0; i < N / 2; i += 4) {
        const float4 two = *reinterpret_cast<const float4*>(&shared_facts[ring.stage(tile)][lane_column(i)]);
#pragma unroll
        for (int j = 0; j < 4; ++j)
          slope[i + j] = score[i + j] * (slope[i + j] - (j % 2 == 0 ? two.y : two.w));
      }
    };
    const auto add_up = [&](int done) {
      add_weighted<Queries>(v_result, weights, queries(done) + Queries::kBytes);
      add_weighted<Queries>(k_result, slopes, queries(done));
      end_products();
    };
    skip_hidden();
    if constexpr (!Tiling::overlaps) {
      for (; tile < total; next(), skip_hidden()) {
        float score[N / 2], slope[N / 2];
        start(score, slope);
        wait_for_products<1>();
        hold(score);
        compute_weights(score);
        hold(score);
        wait_for_products<0>();
        hold(slope);
        slope_of(score, slope);
        pack_left(score, weights);
        pack_left(slope, slopes);
        begin_products();
        add_up(tile);
        wait_for_products<0>();
        hold(v_result);
        hold(k_result);
        hold(weights);
        hold(slopes);
        ring.free(tile);
      }
    } else if (tile < total) {
      int before = tile;
      {
        float score[N / 2], slope[N / 2];
        start(score, slope);
        wait_for_products<1>();
        hold(score);
        compute_weights(score);
        wait_for_products<0>();
        hold(slope);
        slope_of(score, slope);
        pack_left(score, weights);
        pack_left(slope, slopes);
      }
      for (next(), skip_hidden(); tile < total; next(), skip_hidden()) {
        float score[N / 2], slope[N / 2];
        start(score, slope);
        add_up(before);  // overlaps with weighing the new scores
        wait_for_products<2>();
        hold(score);
        compute_weights(score);
        hold(score);
        wait_for_products<1>();
        hold(slope);
        slope_of(score, slope);
        hold(slope);
        wait_for_products<0>();
        hold(v_result);
        hold(k_result);
        hold(weights);
        hold(slopes);
        ring.free(before);
        before = tile;
        pack_left(score, weights);
        pack_left(slope, slopes);
      }
      begin_products();
      add_up(before);
      wait_for_products<0>();
      hold(v_result);
      hold(k_result);
      ring.free(before);
    }
#pragma unroll
    for (int i = 0; i < D / 2; ++i) k_result[i] *= rows.scale;
    if (dk) put_rows<D>(dk, key, kv_head * D, k_result, memory + group * 2 * Keys::kBytes, add_dk);
    if (dv) put_rows<D>(dv, key, kv_head * D, v_result, memory + (group * 2 + 1) * Keys::kBytes, add_dv);
  }
}

template <class Tiling>
void run_key_gradients(cudaStream_t stream, const Attention& op, const Facts& facts) {
  const AttentionRows rows(op);
  const BlockOrder order(op.q.rows, op.at.kv_heads, kWarpgroups * kGroupRows);
  run_hopper("attention keys backward", stream, key_gradients_wgmma<Tiling>, order.blocks, Tiling::kBytes,
             tensor_map(rows.q, Tiling::D, Tiling::N), tensor_map(View(op.dy), Tiling::D, Tiling::N),
             tensor_map(rows.k, Tiling::D, kGroupRows), tensor_map(rows.v, Tiling::D, kGroupRows), rows,
             facts, View(op.dk), View(op.dv), op.add_dk, op.add_dv, order);
}

void wgmma_key_gradients(cudaStream_t stream, const Attention& op, const Facts& facts) {
  switch (op.head_size()) {
    case 32:
      return run_key_gradients<BackwardTiling<32, 64, 1, true, 4, 2>>(stream, op, facts);
    case 64:
      return run_key_gradients<BackwardTiling<64, 64, 1, true, 4, 2>>(stream, op, facts);
    default:
      return run_key_gradients<BackwardTiling<128, 64, 1, false, 3, 1>>(stream, op, facts);
  }
}

}  // namespace

void wgmma_attention_backward(cudaStream_t stream, const Attention& op, float2* memory) {
  const Facts facts{memory, attention_fact_rows(op.q.rows)};
  wgmma_query_gradients(stream, op, facts);  // always needed: it fills the facts
  if (op.dk || op.dv) wgmma_key_gradients(stream, op, facts);
}

}  // namespace thimble::cuda
