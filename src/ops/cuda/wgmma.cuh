// Hopper's warpgroup matrix products (wgmma) and its copy engine (TMA), sm_90a.
//
// Products: 128 threads compute 64 rows of a result. The right factor is in shared memory, the left
// factor there or in registers. Results are distributed as in mma.cuh: a warp has 16 rows, and a
// lane has four floats of every 8 columns. Tiles in shared memory are panels of at most 64 columns;
// each row has 128 (or 64) bytes, swizzled as the copy engine writes them. A product reads them by
// rows (if it sums over columns) or by columns (if it sums over rows).
//
// Copies: boxes of a matrix into such panels, with barriers that signal completion. Rows past the
// last are zeros.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kHopper = true;
#else
inline constexpr bool kHopper = false;  // kernels that use wgmma have an empty body in other passes
#endif

inline constexpr int kWarpgroup = 128;

// R rows of D columns of bf16 in shared memory.
template <int D, int R>
struct Panels {
  static constexpr int kColumns = D < 64 ? D : 64, kRowBytes = 2 * kColumns, kBytes = R * D * 2;
  static constexpr int kPanelBytes = R * kRowBytes, kChunksMask = kRowBytes / 16 - 1;
  static_assert(kColumns == 64 || kColumns == 32);

  // Byte offset of 16 bytes of a row: the 8 columns from 8 * chunk on.
  static __device__ int offset(int row, int chunk) {
    const int panel = chunk / (kColumns / 8), within = chunk % (kColumns / 8);
    const int turn = (row * kRowBytes >> 7) & kChunksMask;
    return panel * kPanelBytes + row * kRowBytes + (within ^ turn) * 16;
  }
};

// The descriptor of a matrix in shared memory.
struct Matrix {
  std::uint64_t bits;
};

enum class Order { by_rows = 0, by_columns = 1 };

// The descriptor of the matrix `offset` bytes after the start of a tile. Only the start differs
// between matrices of a tile.
template <class Tile>
__device__ inline Matrix matrix_at(std::uint32_t tile, int offset) {
  constexpr std::uint32_t kSwizzle = Tile::kColumns == 64 ? 1 : 2;  // 128 or 64 bytes
  constexpr std::uint32_t kEightRows = 8 * Tile::kRowBytes / 16, kPanel = Tile::kPanelBytes / 16;
  const std::uint32_t start = (tile >> 4) + (kPanel << 16) + static_cast<std::uint32_t>(offset / 16);
  return {start | std::uint64_t{kEightRows | kSwizzle << 30} << 32};
}
// Columns [16 k, 16 k + 16) of all rows, read by rows.
template <class Tile>
__device__ inline Matrix by_rows(std::uint32_t tile, int k) {
  constexpr int kSteps = Tile::kColumns / 16;
  return matrix_at<Tile>(tile, k / kSteps * Tile::kPanelBytes + k % kSteps * 32);
}
// Rows [16 k, 16 k + 16), all columns, read by columns.
template <class Tile>
__device__ inline Matrix by_columns(std::uint32_t tile, int k) {
  return matrix_at<Tile>(tile, k * 16 * Tile::kRowBytes);
}

// Required before the first product, and after writing registers that a product reads.
__device__ inline void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until all but the latest `pending` groups are complete.
template <int pending>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
// Prevents the compiler from moving uses of d across a wait: results must be read after the wait
// that completes them, and be used before the next.
template <int R>
__device__ void hold(float (&d)[R]) {
#pragma unroll
  for (int i = 0; i < R; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Keeps a left factor in its registers until the products that read it are complete.
template <int K>
__device__ void hold(std::uint32_t (&left)[K][4]) {
#pragma unroll
  for (int i = 0; i < 4 * K; ++i) asm volatile("" : "+r"(left[i / 4][i % 4])::"memory");
}

// d = a b, or d += a b if `add`, over 16 elements of the sums.
template <Order order>
__device__ inline void wgmma(float (&d)[16], Matrix a, Matrix b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "%16, %17, p, 1, 1, 0, %19;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(add)), "n"(static_cast<int>(order)));
}
template <Order order>
__device__ inline void wgmma(float (&d)[16], const std::uint32_t (&a)[4], Matrix b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, p, 1, 1, %22;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(add)),
        "n"(static_cast<int>(order)));
}
template <Order order>
__device__ inline void wgmma(float (&d)[32], Matrix a, Matrix b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 0, %35;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
        "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
        "+f"(d[30]), "+f"(d[31])
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(add)), "n"(static_cast<int>(order)));
}
template <Order order>
__device__ inline void wgmma(float (&d)[32], const std::uint32_t (&a)[4], Matrix b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
        "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
        "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(add)),
        "n"(static_cast<int>(order)));
}
template <Order order>
__device__ inline void wgmma(float (&d)[64], Matrix a, Matrix b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, 0, %67;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
        "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
        "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),
        "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
        "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]),
        "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]),
        "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(add)), "n"(static_cast<int>(order)));
}
template <Order order>
__device__ inline void wgmma(float (&d)[64], const std::uint32_t (&a)[4], Matrix b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
        "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
        "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),
        "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
        "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]),
        "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]),
        "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(add)),
        "n"(static_cast<int>(order)));
}

// d [64, N] = the 64 rows of `left` times the transpose of all rows of `right`: scores.
template <int D, class Left, class Right, int R>
__device__ void dot_rows(float (&d)[R], std::uint32_t left, std::uint32_t right) {
#pragma unroll
  for (int k = 0; k < D / 16; ++k)
    wgmma<Order::by_rows>(d, by_rows<Left>(left, k), by_rows<Right>(right, k), k > 0);
}
template <class Right, int K, int R>
__device__ void dot_rows(float (&d)[R], const std::uint32_t (&left)[K][4], std::uint32_t right) {
#pragma unroll
  for (int k = 0; k < K; ++k) wgmma<Order::by_rows>(d, left[k], by_rows<Right>(right, k), k > 0);
}
// d [64, D] += weights [64, 16 K] times the 16 K rows of `right`.
template <class Right, int K, int R>
__device__ void add_weighted(float (&d)[R], const std::uint32_t (&weights)[K][4], std::uint32_t right) {
#pragma unroll
  for (int k = 0; k < K; ++k) wgmma<Order::by_columns>(d, weights[k], by_columns<Right>(right, k), true);
}

// The tensor map of bf16 rows: boxes of `rows` rows and one panel of a head of `size` columns.
// Defined in attention_wgmma.cu.
CUtensorMap tensor_map(const View& view, int size, int rows);

__device__ inline std::uint32_t smem_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// A barrier in shared memory: it completes after `count` arrivals and the expected bytes.
struct Barrier {
  std::uint64_t state;

  __device__ std::uint32_t address() { return smem_address(this); }
  __device__ void start(int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(count) : "memory");
  }
  __device__ void expect(int bytes) {  // also arrives
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes)
                 : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }
  __device__ void wait(int parity) {
    asm volatile(
        "{\n.reg .pred there;\n"
        "again:\nmbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
        "@there bra.uni done;\nbra.uni again;\ndone:\n}" ::"r"(address()),
        "r"(parity)
        : "memory");
  }
};

// Makes initialized barriers visible to the copy engine.
__device__ inline void show_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}

// Prefetches the descriptor, which is in memory too.
__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Copies one box: columns from `column` on, rows from `row` on.
__device__ inline void fetch_box(std::uint32_t to, const CUtensorMap& map, int column, int row,
                                 Barrier& ready) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], "
      "[%4];" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(ready.address())
      : "memory");
}
// Copies rows of a head, with one box per panel.
template <class Tile>
__device__ void fetch_rows(std::uint32_t to, const CUtensorMap& map, int column, int row, Barrier& ready) {
#pragma unroll
  for (int panel = 0; panel < Tile::kBytes / Tile::kPanelBytes; ++panel)
    fetch_box(to + static_cast<std::uint32_t>(panel * Tile::kPanelBytes), map,
              column + panel * Tile::kColumns, row, ready);
}
// Copies contiguous bytes; size and addresses are multiples of 16.
__device__ inline void fetch_bytes(std::uint32_t to, const void* from, int bytes, Barrier& ready) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(ready.address())
      : "memory");
}

// A ring of stages in shared memory. The copy engine fills them in order, `ahead` stages before
// they are used, and warps free them. A stage is refilled at least two uses after it was freed, so
// warpgroups need not run in lockstep. If lanes read a stage themselves (by_lanes), each lane frees
// it; if products read it, one lane frees it for its warp.
template <int stages, bool by_lanes = false>
struct Ring {
  Barrier full[stages], empty[stages];

  __device__ void start(int warps) {
    for (Barrier& barrier : full) barrier.start(1);
    for (Barrier& barrier : empty) barrier.start(by_lanes ? warps * kWarp : warps);
  }
  static __device__ int stage(int i) { return static_cast<int>(static_cast<unsigned>(i) % stages); }
  static __device__ int round(int i) { return static_cast<int>(static_cast<unsigned>(i) / stages); }

  // Waits until the stage is free for use i, and expects `bytes` in it.
  __device__ Barrier& claim(int i, int bytes) {
    if (i >= stages) empty[stage(i)].wait((round(i) - 1) & 1);
    full[stage(i)].expect(bytes);
    return full[stage(i)];
  }
  __device__ void wait(int i) { full[stage(i)].wait(round(i) & 1); }
  __device__ void free(int i) {             // called by every thread
    if constexpr (!by_lanes) __syncwarp();  // lane 0 arrives for all lanes
    if (by_lanes || threadIdx.x % kWarp == 0) empty[stage(i)].arrive();
  }
};

}  // namespace thimble::cuda
