// dk and dv on Hopper: keys stay, queries of all heads of their group pass by. Rows of a warpgroup's tiles are keys,
// columns queries: the weights' transpose, which is what multiplies dy and q.
#include "ops/cuda/attention_wgmma.cuh"

namespace thimble::cuda {

namespace {

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
void gradients(cudaStream_t stream, const Attention& op, const Facts& facts) {
  const AttentionRows rows(op);
  const Deal deal(op.q.rows, op.at.kv_heads, kWarpgroups * kGroupRows);
  run_hopper("attention keys backward", stream, key_gradients_wgmma<Cut>, deal.blocks, Cut::kBytes,
             tensor_map(rows.q, Cut::D, Cut::N), tensor_map(View(op.dy), Cut::D, Cut::N),
             tensor_map(rows.k, Cut::D, kGroupRows), tensor_map(rows.v, Cut::D, kGroupRows), rows, facts,
             View(op.dk), View(op.dv), op.add_dk, op.add_dv, deal);
}

}  // namespace

void wgmma_key_gradients(cudaStream_t stream, const Attention& op, const Facts& facts) {
  switch (op.head_size()) {
    case 32:
      return gradients<BackwardCut<32, 64, 1, true, 4, 2>>(stream, op, facts);
    case 64:
      return gradients<BackwardCut<64, 64, 1, true, 4, 2>>(stream, op, facts);
    default:
      return gradients<BackwardCut<128, 64, 1, false, 3, 1>>(stream, op, facts);
  }
}

}  // namespace thimble::cuda
