// Hopper's copy engine: boxes of a matrix into swizzled panels of shared memory (wgmma.cuh), and the barriers that say
// when they are there. Beyond the last row come zeros.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "ops/cuda/rows.cuh"
#include "ops/cuda/wgmma.cuh"

namespace thimble::cuda {

// How the engine sees bf16 rows: boxes of `rows` rows and one panel of a head of `size` columns. In tma.cu.
CUtensorMap tensor_map(const View& view, int size, int rows);

__device__ inline std::uint32_t shared_place(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// A barrier in shared memory: `count` arrivals, and the bytes that were announced.
struct Barrier {
  std::uint64_t state;

  __device__ std::uint32_t place() { return shared_place(this); }
  __device__ void start(int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(place()), "r"(count) : "memory");
  }
  __device__ void expect(int bytes) {  // arrives
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place()), "r"(bytes)
                 : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(place()) : "memory");
  }
  __device__ void wait(int parity) {
    asm volatile(
        "{\n.reg .pred there;\n"
        "again:\nmbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
        "@there bra.uni done;\nbra.uni again;\ndone:\n}" ::"r"(place()),
        "r"(parity)
        : "memory");
  }
};

// After barriers were started, before the engine uses them.
__device__ inline void show_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}

// Before its first use: what a map says comes from memory, too.
__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// One box: columns from `column` on, rows from `row` on.
__device__ inline void fetch_box(std::uint32_t to, const CUtensorMap& map, int column, int row,
                                 Barrier& there) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], "
      "[%4];" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(there.place())
      : "memory");
}
// A head's rows: one box a panel.
template <class Tile>
__device__ void fetch_rows(std::uint32_t to, const CUtensorMap& map, int column, int row, Barrier& there) {
#pragma unroll
  for (int panel = 0; panel < Tile::kBytes / Tile::kPanelBytes; ++panel)
    fetch_box(to + static_cast<std::uint32_t>(panel * Tile::kPanelBytes), map,
              column + panel * Tile::kColumns, row, there);
}
// Bytes that lie together, a multiple of 16 at such addresses.
__device__ inline void fetch_bytes(std::uint32_t to, const void* from, int bytes, Barrier& there) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(there.place())
      : "memory");
}

// Stages of shared memory that the engine fills in order, `ahead` stages before they are used, and warps free. A stage is
// filled again two uses or more after it was freed, so that warpgroups need not keep step. Lanes that read a stage
// themselves (by_lanes) free it one by one; what products have read, one lane frees for its warp.
template <int stages, bool by_lanes = false>
struct Ring {
  Barrier full[stages], empty[stages];

  __device__ void start(int warps) {
    for (Barrier& barrier : full) barrier.start(1);
    for (Barrier& barrier : empty) barrier.start(by_lanes ? warps * kWarp : warps);
  }
  static __device__ int stage(int i) { return static_cast<int>(static_cast<unsigned>(i) % stages); }
  static __device__ int round(int i) { return static_cast<int>(static_cast<unsigned>(i) / stages); }

  // Before the stage is filled for the i-th use.
  __device__ Barrier& claim(int i, int bytes) {
    if (i >= stages) empty[stage(i)].wait((round(i) - 1) & 1);
    full[stage(i)].expect(bytes);
    return full[stage(i)];
  }
  __device__ void wait(int i) { full[stage(i)].wait(round(i) & 1); }
  __device__ void free(int i) {             // by every thread
    if constexpr (!by_lanes) __syncwarp();  // lane 0 speaks for lanes that are done
    if (by_lanes || threadIdx.x % kWarp == 0) empty[stage(i)].arrive();
  }
};

}  // namespace thimble::cuda
