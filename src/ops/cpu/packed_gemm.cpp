// Our own matrix products: f32 arithmetic on panels; bf16 factors are converted during packing.
//
// oneDNN 2.6 has no bf16 products below AVX-512. Its f32 products with AVX2 are as fast as these on
// average, but only these give the same bits for any number of threads: sums run over k in blocks
// of at most kBlockDepth, which are added in order.
#include <hwy/cache_control.h>

#include <algorithm>

#include "base/machine.h"
#include "base/parallel.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/packed_gemm.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

#ifndef THIMBLE_OPS_CPU_PACKED_GEMM_ONCE
#define THIMBLE_OPS_CPU_PACKED_GEMM_ONCE
namespace thimble::cpu {

// Rows and columns of a tile of sums, which stays in registers.
struct TileShape {
  std::int64_t rows, cols;
};

// Where the sums of one block of k are stored.
struct Finish {
  Tensor c, bias;                     // may be absent
  Tensor sums;                        // f32, for a bf16 result of several blocks; else absent
  std::int64_t first_row, first_col;  // of c: position of sums[0][0]
  bool add, first, last;
};

// The packed panels of a block: `left` has the rows of a and `right` the columns of b, in groups of
// one tile side, with `depth` values each.
struct PackedBlock {
  const float *left, *right;
  std::int64_t depth;
  std::int64_t first_row, rows, first_col, cols;  // of c
};

}  // namespace thimble::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// Sums, a row of b and a value of a use all registers: 16 with AVX2, 32 with AVX-512.
constexpr std::int64_t kLanes = hn::MaxLanes(F32());
constexpr int kTileRows = kLanes == 16 ? 8 : kLanes == 8 ? 6 : 4;
constexpr int kTileVectors = kLanes == 16 ? 3 : kLanes == 1 ? 4 : 2;
constexpr std::int64_t kTileCols = kTileVectors * kLanes;

TileShape tile_shape() {
  return {kTileRows, kTileCols};
}

// Transposes a vector of each of four rows into four columns of a panel, 16 bytes at a time.
template <class At>
HWY_INLINE void transpose_four_rows(const Tensor& x, std::int64_t row, std::int64_t k, At at,
                                    std::int64_t width, float* to) {
  const auto vector = [&](std::int64_t r) HWY_ATTR { return at.load(Row(x, row + r) + k); };
  alignas(64) float interleaved[4 * kLanes];
  hn::StoreInterleaved4(vector(0), vector(1), vector(2), vector(3), F32(), interleaved);
  const std::int64_t valid = std::min(kLanes, x.cols - k - at.i);
  for (std::int64_t i = 0; i < valid; ++i)
    std::memcpy(to + i * width, interleaved + 4 * i, 4 * sizeof(float));
}

// Packs `count` rows of x from `row` on as columns of a panel of width `width`: panel[k, r] = x[row
// + r, k]. Remaining columns of the panel are zero.
void pack_rows(const Tensor& x, std::int64_t row, std::int64_t count, std::int64_t k, std::int64_t depth,
               std::int64_t width, float* panel) {
  if (count < width) std::fill_n(panel, depth * width, 0.0f);
  const Tensor part = x.columns(0, k + depth);
  // One vector of every row at a time, so that the destination stays in L1.
  for_lanes(depth, [&](auto at) HWY_ATTR {
    float* to = panel + at.i * width;
    std::int64_t r = 0;
    for (; r + 4 <= count; r += 4) transpose_four_rows(part, row + r, k, at, width, to + r);
    if (r < count && count >= 4)
      return transpose_four_rows(part, row + count - 4, k, at, width, to + count - 4);
    for (; r < count; ++r) {
      float values[kLanes];
      hn::StoreU(at.load(Row(part, row + r) + k), F32(), values);
      for (std::int64_t i = 0; i < std::min(kLanes, depth - at.i); ++i) to[i * width + r] = values[i];
    }
  });
}

// Packs `count` columns of x from `column` on: panel[k, c] = x[k, column + c]. If the width is not
// a whole number of vectors, up to one vector is written past the panel; the next panel is packed
// later by the same thread and overwrites it.
void pack_columns(const Tensor& x, std::int64_t column, std::int64_t count, std::int64_t k,
                  std::int64_t depth, std::int64_t width, float* panel) {
  const std::int64_t vectors = (count + kLanes - 1) / kLanes;
  if (count == width && column + vectors * kLanes <= x.cols) {
    for (std::int64_t i = 0; i < depth; ++i, panel += width) {
      const Row from = Row(x, k + i) + column;
      for (std::int64_t v = 0; v < vectors; ++v) {
        const WholeVector at(v * kLanes);
        at.store(at.load(from), panel);
      }
    }
    return;
  }
  for (std::int64_t i = 0; i < depth; ++i, panel += width) {
    const Row from = Row(x, k + i) + column;
    for_lanes(count, [&](auto at) HWY_ATTR { at.store(at.load(from), panel); });
    std::fill(panel + count, panel + width, 0.0f);
  }
}

// to [kTileRows, kTileCols] = (or +=) left [depth, kTileRows] times right [depth, kTileCols].
HWY_INLINE void multiply_tile(const float* left, const float* right, std::int64_t depth, float* to,
                              std::int64_t stride, bool add) {
  V32 sum[kTileRows][kTileVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
    hwy::Prefetch(to + r * stride);  // so that it is in cache when the sums are complete
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) sum[r][v] = hn::Zero(F32());
  }
  for (std::int64_t k = 0; k < depth; ++k, left += kTileRows, right += kTileCols) {
    V32 b[kTileVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) b[v] = hn::LoadU(F32(), right + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const V32 a = all(left[r]);
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) sum[r][v] = hn::MulAdd(a, b[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      float* target = to + r * stride + v * kLanes;
      hn::StoreU(add ? hn::Add(hn::LoadU(F32(), target), sum[r][v]) : sum[r][v], F32(), target);
    }
}

// Writes a row of a tile to columns [col, col + count) of row `row` of c, through the f32 sums if
// there are several blocks of k.
HWY_INLINE void finish_row(const Finish& f, const float* tile, std::int64_t row, std::int64_t col,
                           std::int64_t count) {
  const bool kept = static_cast<bool>(f.sums);
  const bool adds_result = f.add && (kept ? f.last : f.first);
  const bool adds_sums = !f.first;
  const Row c = Row(f.c, row) + col;
  const Row sums = kept ? Row(f.sums, row - f.first_row) + (col - f.first_col) : c;
  const Row to = kept && !f.last ? sums : c;
  const float* bias = f.bias && f.last ? f.bias.row<float>(0) + col : nullptr;
  for_lanes(count, [&](auto at) HWY_ATTR {
    V32 value = at.load(tile);
    if (adds_sums) value = hn::Add(at.load(sums), value);
    if (adds_result) value = hn::Add(at.load(c), value);
    if (bias) value = hn::Add(value, at.load(bias));
    at.store(value, to);
  });
}

// All row panels times column panels [begin, end).
void multiply_panels(const PackedBlock& block, const Finish& finish, std::int64_t begin, std::int64_t end) {
  alignas(64) float tile[kTileRows * kTileCols];
  const bool is_plain = finish.c.dtype == DType::f32 && !(finish.bias && finish.last);
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t m = 0; m * kTileRows < block.rows; ++m) {
      const float* left = block.left + m * kTileRows * block.depth;
      const float* right = block.right + n * kTileCols * block.depth;
      const std::int64_t rows = std::min<std::int64_t>(kTileRows, block.rows - m * kTileRows);
      const std::int64_t cols = std::min(kTileCols, block.cols - n * kTileCols);
      const std::int64_t row = block.first_row + m * kTileRows, col = block.first_col + n * kTileCols;
      if (is_plain && rows == kTileRows && cols == kTileCols) {
        multiply_tile(left, right, block.depth, finish.c.row<float>(row) + col, finish.c.stride,
                      finish.add || !finish.first);
        continue;
      }
      multiply_tile(left, right, block.depth, tile, kTileCols, false);
      for (std::int64_t r = 0; r < rows; ++r) finish_row(finish, tile + r * kTileCols, row + r, col, cols);
    }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(tile_shape);
HWY_EXPORT(pack_rows);
HWY_EXPORT(pack_columns);
HWY_EXPORT(multiply_panels);

namespace {

// A panel of b of this depth stays in L1 while the task loops over its panels of a in L2.
constexpr std::int64_t kBlockDepth = 512, kBlockCols = 1024;
constexpr std::int64_t kTilesPerTask = 16;  // rows of tiles per task
constexpr std::int64_t kKeptRows = 1024;    // rows of f32 sums for a bf16 result

std::int64_t in_tiles(std::int64_t count, std::int64_t each) {
  return (count + each - 1) / each;
}

// Splits K into blocks of equal depth: 768 becomes 2 x 384, not 512 + 256.
std::int64_t block_depth(std::int64_t K) {
  return K == 0 ? 1 : in_tiles(K, in_tiles(K, kBlockDepth));
}

struct Workspace {
  float *right, *sums;
  std::byte* left;  // one part per thread
  std::int64_t left_bytes;
  bool keeps_sums;

  Workspace(ScratchCutter& cutter, const TileShape& tile, std::int64_t M, std::int64_t N, std::int64_t K,
            DType result) {
    const std::int64_t depth = block_depth(K), cols = std::min(N, kBlockCols);
    keeps_sums = result == DType::bf16 && K > depth;
    cutter.take(right, in_tiles(cols, tile.cols) * tile.cols * depth);
    cutter.take(sums, keeps_sums ? std::min(M, kKeptRows) * cols : 0);
    left_bytes = kTilesPerTask * tile.rows * depth * static_cast<std::int64_t>(sizeof(float)) + kAlignment;
    cutter.take(left, ThreadScratch::bytes(left_bytes));
  }
};

// Packs rows of the left factor, or columns of the right one, into a panel.
void pack_panel(const Operand& x, bool right, std::int64_t first, std::int64_t count, std::int64_t k,
                std::int64_t depth, std::int64_t width, float* panel) {
  // Adjacent panel entries come from different rows in memory.
  const bool by_rows = x.transposed == right;
  const auto pack = by_rows ? &HWY_DYNAMIC_DISPATCH(pack_rows) : &HWY_DYNAMIC_DISPATCH(pack_columns);
  pack(x.tensor, first, count, k, depth, width, panel);
}

// All rows of a block whose column panels are already packed.
void multiply_block(const Operand& a, std::int64_t k, const PackedBlock& block, const Finish& finish,
                    const TileShape& tile, const ThreadScratch& scratch) {
  const std::int64_t rows = in_tiles(block.rows, tile.rows), cols = in_tiles(block.cols, tile.cols);
  const std::int64_t threads = max_threads();
  // The same number of row tasks for every thread. With few rows, columns are divided too.
  const std::int64_t row_tasks = std::min(rows, in_tiles(in_tiles(rows, kTilesPerTask), threads) * threads);
  const std::int64_t col_tasks = std::min(cols, in_tiles(threads, row_tasks));
  parallel_tasks(row_tasks * col_tasks, [&](std::int64_t task) {
    const std::int64_t m = task / col_tasks, n = task % col_tasks;
    const std::int64_t first = m * rows / row_tasks * tile.rows, end = (m + 1) * rows / row_tasks * tile.rows;
    auto* left = reinterpret_cast<float*>(scratch.mine());
    PackedBlock part = block;
    part.left = left;
    part.first_row += first;
    part.rows = std::min(end, block.rows) - first;
    for (std::int64_t row = 0; row < part.rows; row += tile.rows)
      pack_panel(a, false, part.first_row + row, std::min(tile.rows, part.rows - row), k, block.depth,
                 tile.rows, left + row * block.depth);
    HWY_DYNAMIC_DISPATCH(multiply_panels)
    (part, finish, n * cols / col_tasks, (n + 1) * cols / col_tasks);
  });
}

}  // namespace

bool uses_packed_gemm(DType dtype) {
  const CpuLevel level = cpu_level();
  return dtype == DType::f32 ? level == CpuLevel::avx2 : level < CpuLevel::avx512_bf16;
}

std::int64_t packed_gemm_bytes(std::int64_t M, std::int64_t N, std::int64_t K, DType result) {
  ScratchCutter cutter;
  Workspace(cutter, HWY_DYNAMIC_DISPATCH(tile_shape)(), M, N, K, result);
  return cutter.bytes();
}

void packed_gemm(const Operand& a, const Operand& b, const Tensor& c, bool add, const Tensor& bias,
                 std::byte* memory) {
  const TileShape tile = HWY_DYNAMIC_DISPATCH(tile_shape)();
  const std::int64_t M = c.rows, N = c.cols, K = a.cols(), depth_each = block_depth(K);
  ScratchCutter cutter(memory);
  const Workspace work(cutter, tile, M, N, K, c.dtype);
  const ThreadScratch scratch(work.left, work.left_bytes);
  const std::int64_t rows_each = work.keeps_sums ? kKeptRows : std::max<std::int64_t>(M, 1);
  for (std::int64_t m = 0; m < M; m += rows_each)
    for (std::int64_t n = 0; n < N; n += kBlockCols) {
      const std::int64_t rows = std::min(rows_each, M - m), cols = std::min(kBlockCols, N - n);
      for (std::int64_t k = 0; k < std::max<std::int64_t>(K, 1); k += depth_each) {
        const std::int64_t depth = std::min(depth_each, K - k);
        parallel_for(in_tiles(cols, tile.cols), 1, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t col = begin * tile.cols; col < std::min(end * tile.cols, cols); col += tile.cols)
            pack_panel(b, true, n + col, std::min(tile.cols, cols - col), k, depth, tile.cols,
                       work.right + col * depth);
        });
        multiply_block(a, k, {nullptr, work.right, depth, m, rows, n, cols},
                       {.c = c,
                        .bias = bias,
                        .sums = work.keeps_sums ? make_tensor(work.sums, rows, cols) : Tensor{},
                        .first_row = m,
                        .first_col = n,
                        .add = add,
                        .first = k == 0,
                        .last = k + depth >= K},
                       tile, scratch);
      }
    }
}

}  // namespace thimble::cpu
#endif
