// Attention backward on Hopper: two kernels. Scores are made twice, which is cheaper than adding dq up in memory in a fixed
// order: 7 products instead of 5, but no f32 sums of dq read and written for every tile of keys.
#include "ops/cuda/attention_wgmma.cuh"

namespace thimble::cuda {

namespace {

// Facts of a head lie together; beyond the last row they say that nothing is seen.
struct Facts {
  QueryFact* data;
  std::int64_t stride;  // rows of a head, whole tiles

  __device__ QueryFact* of(int head, std::int64_t row) const { return data + head * stride + row; }
};

// dq: queries stay, keys pass by. While a tile's scores and slopes are made, the tile before is added up. What is known of
// every query is found on the way, for the keys' gradients, too.

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
void run_query_gradients(cudaStream_t stream, const Attention& op, const Facts& facts) {
  const AttentionRows rows(op);
  const int together = op.group() % kWarpgroups == 0 ? kWarpgroups : 1;
  const Deal deal(op.q.rows, op.at.heads / together, kWarpgroups * kGroupRows / together);
  run_hopper("attention queries backward", stream, query_gradients_wgmma<Cut>, deal.blocks, Cut::kBytes,
             tensor_map(rows.q, Cut::D, kGroupRows), tensor_map(View(op.dy), Cut::D, kGroupRows),
             tensor_map(rows.k, Cut::D, Cut::N), tensor_map(rows.v, Cut::D, Cut::N), rows,
             FactRows{View(op.dy), View(op.y), View(op.lse)}, facts, View(op.dq), op.add_dq, deal);
}

// Fills facts.
void wgmma_query_gradients(cudaStream_t stream, const Attention& op, const Facts& facts) {
  switch (op.head_size()) {
    case 32:
      return run_query_gradients<BackwardCut<32, 64, 2, false, 4, 2>>(stream, op, facts);
    case 64:
      return run_query_gradients<BackwardCut<64, 128, 1, true, 3, 1>>(stream, op, facts);
    default:
      return run_query_gradients<BackwardCut<128, 64, 1, false, 4, 2>>(stream, op, facts);
  }
}

// dk and dv: keys stay, queries of all heads of their group pass by. Rows of a warpgroup's tiles are keys, columns queries:
// the weights' transpose, which is what multiplies dy and q.

// The first row from `from` on whose document starts after row `key`, looked for by the whole block.
__device__ inline int first_row_past(const AttentionRows& rows, int from, int key) {
  int low = from, high = static_cast<int>(rows.rows);
  while (low < high) {
    const int step = (high - low + kHopperBlock - 1) / kHopperBlock, start = low;
    const int probe = start + static_cast<int>(threadIdx.x) * step;
    const int seen = __syncthreads_count(probe < high && rows.first[probe] <= key);
    if (seen == 0) break;
    low = start + (seen - 1) * step + 1;
    high = min(high, start + seen * step);
  }
  return low;
}

template <class Cut>
__global__ void __launch_bounds__(kHopperBlock, Cut::blocks)
    key_gradients_wgmma(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap dy_map,
                        const __grid_constant__ CUtensorMap k_map, const __grid_constant__ CUtensorMap v_map,
                        const AttentionRows rows, const Facts facts, const View dk, const View dv,
                        const bool add_dk, const bool add_dv, const Deal deal) {
  if constexpr (kHopper) {
    constexpr int D = Cut::D, N = Cut::N;
    using Keys = typename Cut::Staying;
    using Queries = typename Cut::Passing;
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ Ring<Cut::stages, true> ring;
    __shared__ Barrier keys_there;
    __shared__ __align__(16) QueryFact shared_facts[Cut::stages][N];
    const std::uint32_t base = shared_place(memory), passing = base + Cut::kStayingBytes;
    const int group = warpgroup(), kv_head = deal.head(), block_key = deal.row(false);
    if (block_key >= rows.rows) return;
    const int key = block_key + group * kGroupRows;
    const int last_key = min(block_key + kWarpgroups * kGroupRows, static_cast<int>(rows.rows)) - 1;
    const bool leads = threadIdx.x == 0;
    const auto queries = [&](int tile) {
      return passing + static_cast<std::uint32_t>(ring.stage(tile) * Cut::kStageBytes);
    };
    const auto fetch = [&](int tile, int head, int query) {
      Barrier& there = ring.claim(tile, Cut::kStageBytes + Cut::kFactBytes);
      fetch_rows<Queries>(queries(tile), q_map, head * D, query, there);
      fetch_rows<Queries>(queries(tile) + Queries::kBytes, dy_map, head * D, query, there);
      fetch_bytes(shared_place(shared_facts[ring.stage(tile)]), facts.of(head, query), Cut::kFactBytes,
                  there);
    };
    if (leads) {
      prefetch_map(q_map);
      prefetch_map(dy_map);
      prefetch_map(k_map);
      prefetch_map(v_map);
      ring.start(kHopperBlock / kWarp);
      keys_there.start(1);
      show_barriers();
      keys_there.expect(Cut::kStayingBytes);
      for (int g = 0; g < kWarpgroups; ++g) {
        const std::uint32_t to = base + static_cast<std::uint32_t>(g * 2 * Keys::kBytes);
        fetch_rows<Keys>(to, k_map, kv_head * D, block_key + g * kGroupRows, keys_there);
        fetch_rows<Keys>(to + Keys::kBytes, v_map, kv_head * D, block_key + g * kGroupRows, keys_there);
      }
    }
    // Queries before `free` see every key above them, those from `end` on see none.
    const int free = __shfl_sync(~0u, first_row_past(rows, block_key, block_key), 0);
    const int end =
        __shfl_sync(~0u, first_row_past(rows, last_key, last_key), 0);  // the same, and known to be
    const int tiles = (end - block_key + N - 1) / N, total = tiles * rows.group;
    int coming = 0, coming_head = kv_head * rows.group, coming_query = block_key;
    const auto fetch_next = [&] {
      if (!leads || coming >= total) return;
      fetch(coming++, coming_head, coming_query);
      coming_query += N;
      if (coming_query >= end) coming_query = block_key, ++coming_head;
    };
    for (int tile = 0; tile < Cut::ahead; ++tile) fetch_next();
    __syncthreads();

    const std::uint32_t k = base + static_cast<std::uint32_t>(group * 2 * Keys::kBytes);
    const std::uint32_t v = k + Keys::kBytes;
    std::uint32_t k_left[D / 16][4], v_left[D / 16][4];
    keys_there.wait(0);
    if constexpr (Cut::left_stays) {
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
          if (m + i / 2 % 2 * 8 < rows.first[n]) score[i] = -INFINITY;
        }
      }
    };
    int tile = 0, query = block_key;
    const auto next = [&] {
      ++tile, query += N;
      if (query >= end) query = block_key;
    };
    const auto pass_hidden = [&] {  // queries before all of this warpgroup's keys
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
      if constexpr (Cut::left_stays) {
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
    const auto weigh = [&](float(&score)[N / 2]) {
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
    pass_hidden();
    if constexpr (!Cut::overlaps) {
      for (; tile < total; next(), pass_hidden()) {
        float score[N / 2], slope[N / 2];
        start(score, slope);
        wait_for_products<1>();
        hold(score);
        weigh(score);
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
        weigh(score);
        wait_for_products<0>();
        hold(slope);
        slope_of(score, slope);
        pack_left(score, weights);
        pack_left(slope, slopes);
      }
      for (next(), pass_hidden(); tile < total; next(), pass_hidden()) {
        float score[N / 2], slope[N / 2];
        start(score, slope);
        add_up(before);  // while these are weighed
        wait_for_products<2>();
        hold(score);
        weigh(score);
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

template <class Cut>
void run_key_gradients(cudaStream_t stream, const Attention& op, const Facts& facts) {
  const AttentionRows rows(op);
  const Deal deal(op.q.rows, op.at.kv_heads, kWarpgroups * kGroupRows);
  run_hopper("attention keys backward", stream, key_gradients_wgmma<Cut>, deal.blocks, Cut::kBytes,
             tensor_map(rows.q, Cut::D, Cut::N), tensor_map(View(op.dy), Cut::D, Cut::N),
             tensor_map(rows.k, Cut::D, kGroupRows), tensor_map(rows.v, Cut::D, kGroupRows), rows, facts,
             View(op.dk), View(op.dv), op.add_dk, op.add_dv, deal);
}

void wgmma_key_gradients(cudaStream_t stream, const Attention& op, const Facts& facts) {
  switch (op.head_size()) {
    case 32:
      return run_key_gradients<BackwardCut<32, 64, 1, true, 4, 2>>(stream, op, facts);
    case 64:
      return run_key_gradients<BackwardCut<64, 64, 1, true, 4, 2>>(stream, op, facts);
    default:
      return run_key_gradients<BackwardCut<128, 64, 1, false, 3, 1>>(stream, op, facts);
  }
}

}  // namespace

void wgmma_attention_backward(cudaStream_t stream, const Attention& op, float2* memory) {
  const Facts facts{memory, attention_fact_rows(op.q.rows)};
  wgmma_query_gradients(stream, op, facts);  // first, wanted or not: it knows the queries
  if (op.dk || op.dv) wgmma_key_gradients(stream, op, facts);
}

}  // namespace thimble::cuda
