// Shared by the Hopper attention kernels: the rows of a lane, packing weights as the left factor of
// the next product, and storing results.
//
// A warpgroup has 64 rows of a result. A block has two warpgroups: 64 queries of two heads that
// share keys, or 128 rows of one head. Row numbers are 32-bit here.
#pragma once

#include <algorithm>

#include "ops/cuda/attention.h"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/wgmma.cuh"

namespace thimble::cuda {

inline constexpr int kGroupRows = 64, kWarpgroups = 2, kHopperBlock = kWarpgroups * kWarpgroup;
inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// Per-query inputs of backward: lse in base 2, and dy . y.
using QueryFact = float2;

// Tiling of forward: N keys per tile, `stages` tiles in shared memory, fetched `ahead` tiles early.
template <int head_size, int keys, int min_blocks, bool left_in_registers, int stage_count, int tiles_ahead>
struct ForwardTiling {
  static constexpr int D = head_size, N = keys, blocks = min_blocks, stages = stage_count,
                       ahead = tiles_ahead;
  static constexpr bool q_in_registers = left_in_registers;
  using Queries = Panels<D, kGroupRows>;
  using Keys = Panels<D, N>;
  static constexpr int kBytes = kWarpgroups * Queries::kBytes + stages * 2 * Keys::kBytes;
  static_assert(ahead <= stages - 2);
};

// Tiling of backward: N rows per streamed tile, `stages` tiles in shared memory, fetched `ahead`
// tiles early.
template <int head_size, int streamed_rows, int min_blocks, bool left_in_registers, int stage_count,
          int tiles_ahead>
struct BackwardTiling {
  static constexpr int D = head_size, N = streamed_rows, blocks = min_blocks, stages = stage_count,
                       ahead = tiles_ahead;
  static constexpr bool keeps_left = left_in_registers;
  // Registers suffice to compute the next tile's scores while one tile is accumulated.
  static constexpr bool overlaps = D < 128 || N < 64;
  using Resident = Panels<D, kGroupRows>;
  using Streamed = Panels<D, N>;
  static constexpr int kFactBytes = N * static_cast<int>(sizeof(QueryFact));
  static constexpr int kResidentBytes = kWarpgroups * 2 * Resident::kBytes;
  static constexpr int kStageBytes = 2 * Streamed::kBytes;
  static constexpr int kBytes = kResidentBytes + stages * kStageBytes;
  static_assert(ahead <= stages - 2);
};

__device__ inline int warpgroup() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
}
// Synchronizes the 128 threads of a warpgroup.
__device__ inline void sync_warpgroup() {
  if (warpgroup() == 0)
    asm volatile("bar.sync 1, %0;" ::"n"(kWarpgroup) : "memory");
  else
    asm volatile("bar.sync 2, %0;" ::"n"(kWarpgroup) : "memory");
}
// A lane's first row of its warpgroup's 64 rows; its second is 8 further.
__device__ inline int lane_row() {
  return static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16 + static_cast<int>(threadIdx.x) % kWarp / 4;
}
__device__ inline int lane_column(int i) {  // of the i-th result of a lane
  return i / 4 * 8 + 2 * static_cast<int>(threadIdx.x % 4) + (i & 1);
}

__device__ inline float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Reductions over the four lanes that share a row.
__device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// Packs results as bf16, as the left factor of a product.
template <int R>
__device__ void pack_left(const float (&values)[R], std::uint32_t (&left)[R / 8][4]) {
#pragma unroll
  for (int i = 0; i < R / 8; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) left[i][j] = pack(values[8 * i + 2 * j], values[8 * i + 2 * j + 1]);
}

// Loads 64 rows of a tile as the left factor of products.
template <int D>
__device__ void load_left(std::uint32_t tile, std::uint32_t (&left)[D / 16][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16 + lane % 16;
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const std::uint32_t from =
        tile + static_cast<std::uint32_t>(Panels<D, kGroupRows>::offset(row, 2 * k + lane / 16));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(left[k][0]), "=r"(left[k][1]), "=r"(left[k][2]), "=r"(left[k][3])
                 : "r"(from)
                 : "memory");
  }
}

// The queries of a lane (rows of scores) and the keys they attend to.
struct QueryRows {
  int n[2], first[2];  // row numbers, and the first keys that they attend to
  int latest;          // first key of the warpgroup's last row

  __device__ QueryRows(const AttentionRows& rows, int query) {
    const int last = static_cast<int>(rows.rows) - 1;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      n[side] = query + lane_row() + 8 * side;
      first[side] = rows.first_key(min(n[side], last));  // past the batch: results are not stored
    }
    latest = rows.first_key(min(query + kGroupRows - 1, last));
  }

  // Masks the scores of keys that a query does not attend to; the tile has 2 R keys from `key` on.
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

// The assignment of row tiles to blocks, which start in order of their index. Within `abreast`
// times 1024 rows, the tiles with the most work come first, assuming documents of about that
// length: late queries, early keys. Short tiles at the end balance the multiprocessors. Heads of
// the same rows are adjacent.
struct BlockOrder {
  static constexpr int kLikelyContext = 1024,
                       kMaxAbreast = 8;  // keys and values of 8192 rows stay in L2
  int heads, tile_rows, abreast, blocks;

  BlockOrder(std::int64_t rows, std::int64_t heads_side_by_side, int rows_of_a_tile)
      : heads(static_cast<int>(heads_side_by_side)),
        tile_rows(rows_of_a_tile),
        abreast(static_cast<int>(std::min<std::int64_t>(kMaxAbreast, (rows - 1) / kLikelyContext + 1))),
        blocks(static_cast<int>(blocks_for(rows, abreast * kLikelyContext)) * abreast *
               (kLikelyContext / rows_of_a_tile) * heads) {}

  __device__ int head() const { return static_cast<int>(blockIdx.x) % heads; }
  __device__ int row(bool late_first) const {  // may be past the last row
    const int each = kLikelyContext / tile_rows, index = static_cast<int>(blockIdx.x) / heads;
    const int chunk = each * abreast, within = index % chunk, rank = within / abreast;
    return (index / chunk * chunk + within % abreast * each + (late_first ? each - 1 - rank : rank)) *
           tile_rows;
  }
};

// The queries of a block and of a warpgroup, and the tiles of N keys to loop over.
template <int D, int N>
struct QueryWalk {
  int head, query, kv_column;   // the warpgroup's head and first query
  int block_head, block_query;  // the block's
  int begin, tiles;             // first key to attend to, rounded down to a tile
  int first_tile, end_tile;     // the tiles of this warpgroup; it skips all others

  // Must not be constructed for a block past the last row.
  __device__ QueryWalk(const AttentionRows& rows, const BlockOrder& order) {
    const int group = warpgroup(), together = kGroupRows * kWarpgroups / order.tile_rows;
    const int last = static_cast<int>(rows.rows) - 1;
    block_head = order.head() * together;
    block_query = order.row(true);
    head = block_head + group % together;
    query = block_query + group / together * kGroupRows;
    kv_column = head / rows.group * D;
    begin = rows.first_key(block_query) / N * N;
    tiles = (min(block_query + order.tile_rows - 1, last) - begin) / N + 1;
    first_tile = (rows.first_key(min(query, last)) - begin) / N;
    end_tile = min(tiles, (query + kGroupRows - 1 - begin) / N + 1);
  }
};

// Adds the previous contents of `to` to the results.
template <int D>
__device__ void add_before(const View& to, int first, int column, float (&results)[D / 2]) {
#pragma unroll
  for (int i = 0; i < D / 2; i += 2) {
    const std::int64_t row = first + lane_row() + i / 2 % 2 * 8;
    if (row >= to.rows) continue;
    const Half* pointer = static_cast<const Half*>(to.data) + row * to.stride + column + lane_column(i);
    const float2 before = unpack(*reinterpret_cast<const std::uint32_t*>(pointer));
    results[i] += before.x, results[i + 1] += before.y;
  }
}

// Stores a warpgroup's results in a matrix, or adds them, through its own 64 rows of shared memory.
template <int D>
__device__ void put_rows(const View& to, int first, int column, float (&results)[D / 2], unsigned char* tile,
                         bool add) {
  using Tile = Panels<D, kGroupRows>;
  constexpr int kChunks = D / 8;
  const int row = lane_row();
  if (add) add_before<D>(to, first, column, results);
  sync_warpgroup();  // the whole warpgroup has finished reading this memory
#pragma unroll
  for (int i = 0; i < D / 2; i += 2)
    *reinterpret_cast<std::uint32_t*>(tile + Tile::offset(row + i / 2 % 2 * 8, i / 4) + threadIdx.x % 4 * 4) =
        pack(results[i], results[i + 1]);
  sync_warpgroup();
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x) % kWarpgroup; i < kGroupRows * kChunks; i += kWarpgroup) {
    const int r = i / kChunks, chunk = i % kChunks;
    if (first + r >= to.rows) continue;
    Half* pointer = static_cast<Half*>(to.data) + (first + r) * to.stride + column + chunk * 8;
    *reinterpret_cast<uint4*>(pointer) = *reinterpret_cast<const uint4*>(tile + Tile::offset(r, chunk));
  }
}

template <class Kernel, class... Args>
void run_hopper(const char* name, cudaStream_t stream, Kernel kernel, int blocks, int bytes,
                const Args&... args) {
  reserve_shared(name, kernel, bytes);
  kernel<<<static_cast<unsigned>(blocks), kHopperBlock, static_cast<std::size_t>(bytes), stream>>>(args...);
  launched(name);
}

}  // namespace thimble::cuda
