// What attention's kernels on Hopper share: a lane's rows, weights as the left side of the next product, results on their
// way out.
//
// A warpgroup has 64 rows of a result. Two of them make a block: 64 queries of two heads that share keys, or 128 rows of
// one head. Row numbers are 32 bits wide here.
#pragma once

#include <algorithm>

#include "ops/cuda/attention.h"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/wgmma.cuh"

namespace thimble::cuda {

inline constexpr int kGroupRows = 64, kWarpgroups = 2, kHopperBlock = kWarpgroups * kWarpgroup;
inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// What backward needs of a query: lse in powers of 2, and dy . y.
using QueryFact = float2;

// How forward is cut: N keys at a time, `stages` tiles of them in shared memory, fetched `ahead` tiles early.
template <int head_size, int keys, int blocks_there, bool left_in_registers, int stage_count, int tiles_ahead>
struct ForwardCut {
  static constexpr int D = head_size, N = keys, blocks = blocks_there, stages = stage_count,
                       ahead = tiles_ahead;
  static constexpr bool q_in_registers = left_in_registers;
  using Queries = Panels<D, kGroupRows>;
  using Keys = Panels<D, N>;
  static constexpr int kBytes = kWarpgroups * Queries::kBytes + stages * 2 * Keys::kBytes;
  static_assert(ahead <= stages - 2);
};

// How the passing side is cut: N rows at a time, `stages` tiles in shared memory, fetched `ahead` tiles early.
template <int head_size, int passing_rows, int blocks_there, bool left_in_registers, int stage_count,
          int tiles_ahead>
struct BackwardCut {
  static constexpr int D = head_size, N = passing_rows, blocks = blocks_there, stages = stage_count,
                       ahead = tiles_ahead;
  static constexpr bool left_stays = left_in_registers;
  static constexpr bool overlaps =
      D < 128 || N < 64;  // registers for the next tile's scores while one is added up
  using Staying = Panels<D, kGroupRows>;
  using Passing = Panels<D, N>;
  static constexpr int kFactBytes = N * static_cast<int>(sizeof(QueryFact));
  static constexpr int kStayingBytes = kWarpgroups * 2 * Staying::kBytes;
  static constexpr int kStageBytes = 2 * Passing::kBytes;
  static constexpr int kBytes = kStayingBytes + stages * kStageBytes;
  static_assert(ahead <= stages - 2);
};

__device__ inline int warpgroup() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
}
// All 128 threads of it.
__device__ inline void meet_warpgroup() {
  if (warpgroup() == 0)
    asm volatile("bar.sync 1, %0;" ::"n"(kWarpgroup) : "memory");
  else
    asm volatile("bar.sync 2, %0;" ::"n"(kWarpgroup) : "memory");
}
// A lane's first row of its warpgroup's 64; the second is 8 further.
__device__ inline int lane_row() {
  return static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16 + static_cast<int>(threadIdx.x) % kWarp / 4;
}
__device__ inline int lane_column(int i) {  // of the i-th float of 64 rows of results
  return i / 4 * 8 + 2 * static_cast<int>(threadIdx.x % 4) + (i & 1);
}

__device__ inline float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The four lanes that share a row.
__device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// Results as the left side of a product: bf16.
template <int R>
__device__ void pack_left(const float (&values)[R], std::uint32_t (&left)[R / 8][4]) {
#pragma unroll
  for (int i = 0; i < R / 8; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) left[i][j] = pack(values[8 * i + 2 * j], values[8 * i + 2 * j + 1]);
}

// 64 rows of a tile as the left side of products.
template <int D>
__device__ void load_left(std::uint32_t tile, std::uint32_t (&left)[D / 16][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16 + lane % 16;
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const std::uint32_t from =
        tile + static_cast<std::uint32_t>(Panels<D, kGroupRows>::place(row, 2 * k + lane / 16));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(left[k][0]), "=r"(left[k][1]), "=r"(left[k][2]), "=r"(left[k][3])
                 : "r"(from)
                 : "memory");
  }
}

// Queries as rows of scores: which keys of a tile a lane's two rows see.
struct QueryRows {
  int n[2], first[2];  // numbers, and where their documents start
  int latest;          // where the document of the warpgroup's last row starts

  __device__ QueryRows(const AttentionRows& rows, int query) {
    const int last = static_cast<int>(rows.rows) - 1;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      n[side] = query + lane_row() + 8 * side;
      first[side] = rows.first[min(n[side], last)];  // beyond the batch: results that nobody takes
    }
    latest = rows.first[min(query + kGroupRows - 1, last)];
  }

  // Hides what is not seen of `keys` keys from `key` on.
  template <int R>
  __device__ void mask(float (&score)[R], int query, int key) const {
    constexpr int kKeys = 2 * R;
    if (key + kKeys - 1 <= query && latest <= key) return;
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const int side = i / 2 % 2, m = key + lane_column(i);
      if (m < first[side] || m > n[side]) score[i] = -INFINITY;
    }
  }
};

// How tiles of rows are dealt out to blocks, which start in the order of their numbers. Of `abreast` times 1024 rows those
// with most to do come first, if documents are about that long: queries late in them, keys early in them. What is left
// at the end is short. Heads of the same rows stand side by side.
struct Deal {
  static constexpr int kLikelyContext = 1024,
                       kMostAbreast = 8;  // 8192 rows of keys and values stay in the cache
  int heads, tile_rows, abreast, blocks;

  Deal(std::int64_t rows, std::int64_t heads_side_by_side, int rows_of_a_tile)
      : heads(static_cast<int>(heads_side_by_side)),
        tile_rows(rows_of_a_tile),
        abreast(static_cast<int>(std::min<std::int64_t>(kMostAbreast, (rows - 1) / kLikelyContext + 1))),
        blocks(static_cast<int>(blocks_for(rows, abreast * kLikelyContext)) * abreast *
               (kLikelyContext / rows_of_a_tile) * heads) {}

  __device__ int head() const { return static_cast<int>(blockIdx.x) % heads; }
  __device__ int row(bool late_first) const {  // may be beyond the last
    const int each = kLikelyContext / tile_rows, index = static_cast<int>(blockIdx.x) / heads;
    const int chunk = each * abreast, within = index % chunk, rank = within / abreast;
    return (index / chunk * chunk + within % abreast * each + (late_first ? each - 1 - rank : rank)) *
           tile_rows;
  }
};

// Which queries a block and a warpgroup have, and which tiles of N keys pass by.
template <int D, int N>
struct QueryWalk {
  int head, query, kv_column;   // the warpgroup's head and first query
  int block_head, block_query;  // the block's
  int begin, tiles;             // the first key that any query of the block sees, down to a whole tile
  int mine, past;               // the tiles that this warpgroup's queries see; the others pass by

  // Not for a block beyond the last row.
  __device__ QueryWalk(const AttentionRows& rows, const Deal& deal) {
    const int group = warpgroup(), together = kGroupRows * kWarpgroups / deal.tile_rows;
    const int last = static_cast<int>(rows.rows) - 1;
    block_head = deal.head() * together;
    block_query = deal.row(true);
    head = block_head + group % together;
    query = block_query + group / together * kGroupRows;
    kv_column = head / rows.group * D;
    begin = rows.first[block_query] / N * N;
    tiles = (min(block_query + deal.tile_rows - 1, last) - begin) / N + 1;
    mine = (rows.first[min(query, last)] - begin) / N;
    past = min(tiles, (query + kGroupRows - 1 - begin) / N + 1);
  }
};

// What stands where results will.
template <int D>
__device__ void add_before(const View& to, int first, int column, float (&results)[D / 2]) {
#pragma unroll
  for (int i = 0; i < D / 2; i += 2) {
    const std::int64_t row = first + lane_row() + i / 2 % 2 * 8;
    if (row >= to.rows) continue;
    const Half* place = static_cast<const Half*>(to.data) + row * to.stride + column + lane_column(i);
    const float2 before = unpack(*reinterpret_cast<const std::uint32_t*>(place));
    results[i] += before.x, results[i + 1] += before.y;
  }
}

// A warpgroup's results, through its own 64 rows of shared memory into a matrix: '=' or '+='.
template <int D>
__device__ void put_rows(const View& to, int first, int column, float (&results)[D / 2], unsigned char* tile,
                         bool add) {
  using Tile = Panels<D, kGroupRows>;
  constexpr int kChunks = D / 8;
  const int row = lane_row();
  if (add) add_before<D>(to, first, column, results);
  meet_warpgroup();  // all of it has read what lay there
#pragma unroll
  for (int i = 0; i < D / 2; i += 2)
    *reinterpret_cast<std::uint32_t*>(tile + Tile::place(row + i / 2 % 2 * 8, i / 4) + threadIdx.x % 4 * 4) =
        pack(results[i], results[i + 1]);
  meet_warpgroup();
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x) % kWarpgroup; i < kGroupRows * kChunks; i += kWarpgroup) {
    const int r = i / kChunks, chunk = i % kChunks;
    if (first + r >= to.rows) continue;
    Half* place = static_cast<Half*>(to.data) + (first + r) * to.stride + column + chunk * 8;
    *reinterpret_cast<uint4*>(place) = *reinterpret_cast<const uint4*>(tile + Tile::place(r, chunk));
  }
}

template <class Kernel, class... Args>
void run_hopper(const char* name, cudaStream_t stream, Kernel kernel, int blocks, int bytes,
                const Args&... args) {
  checked(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name);
  kernel<<<static_cast<unsigned>(blocks), kHopperBlock, static_cast<std::size_t>(bytes), stream>>>(args...);
  launched(name);
}

}  // namespace thimble::cuda
