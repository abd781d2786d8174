// Tiles of 16-bit numbers in shared memory and their products on the tensor cores (mma.sync
// m16n8k16, sm_80 and newer). Tiles are bf16 unless the template parameter H is __half; they are
// copied as Half in both cases.
//
// A warp has 16 rows of a result. Of every 8 columns, a lane has columns 2t and 2t + 1 of rows g
// and g + 8 (four floats), where g = lane / 4 and t = lane % 4. Weights in this form can be used
// directly as the left factor of the next product.
#pragma once

#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

using Half = __nv_bfloat16;

// Rows of D elements, padded by 8 so that the 8 rows a warp reads are in different banks.
template <int D>
inline constexpr int kPitch = D + 8;

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Starts to copy rows [first, first + R), columns [column, column + D); zeros past the last row.
template <int D, int R, int threads>
__device__ void fetch_tile(Half* tile, const View& from, std::int64_t first, std::int64_t column) {
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < R * D / kVector; i += threads) {
    const int r = i / (D / kVector), c = i % (D / kVector) * kVector;
    const bool valid = first + r < from.rows;
    const Half* source =
        static_cast<const Half*>(from.data) + (valid ? (first + r) * from.stride + column + c : 0);
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(tile + r * kPitch<D> + c)),
        "l"(source), "r"(valid ? 16 : 0));
  }
}
__device__ inline void end_of_fetch() {
  asm volatile("cp.async.commit_group;");
}
// Waits until all but the latest `pending` copies of this thread are complete.
template <int pending>
__device__ void wait_for_fetch() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending));
}

// Loads four 8 x 8 matrices; lane i passes the address of row i % 8 of matrix i / 8.
__device__ inline void load_matrices(std::uint32_t (&r)[4], const Half* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}
__device__ inline void load_matrices_transposed(std::uint32_t (&r)[4], const Half* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}

template <class H = Half>
__device__ inline void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::is_same_v<H, __half>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// sums [16, 8 T] = rows [row, row + 16) of a, times the transpose of the 8 T rows of b: scores.
template <int D, class H = Half, int T>
__device__ void tile_dots(const Half* a, int row, const Half* b, float (&sums)[T][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (auto& sum : sums)
#pragma unroll
    for (float& value : sum) value = 0;
  const Half* left = a + (row + lane % 16) * kPitch<D> + lane / 16 * 8;
  const Half* right = b + (lane / 16 * 8 + lane % 8) * kPitch<D> + lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    std::uint32_t l[4];
    load_matrices(l, left + k);
#pragma unroll
    for (int n = 0; n < T; n += 2) {
      std::uint32_t r[4];
      load_matrices(r, right + n * 8 * kPitch<D> + k);
      mma<H>(sums[n], l, r[0], r[1]);
      mma<H>(sums[n + 1], l, r[2], r[3]);
    }
  }
}

// sums [16, 8 C] += weights [16, 8 T], rounded to 16 bits, times 8 C columns of the 8 T rows of a
// tile of D columns.
template <int D, class H = Half, int T, int C>
__device__ void tile_accumulate(const float (&weights)[T][4], const Half* tile, float (&sums)[C][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Half* right = tile + lane % 16 * kPitch<D> + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < T; k += 2) {
    const std::uint32_t l[4] = {pack<H>(weights[k][0], weights[k][1]), pack<H>(weights[k][2], weights[k][3]),
                                pack<H>(weights[k + 1][0], weights[k + 1][1]),
                                pack<H>(weights[k + 1][2], weights[k + 1][3])};
#pragma unroll
    for (int n = 0; n < C; n += 2) {
      std::uint32_t r[4];
      load_matrices_transposed(r, right + k * 8 * kPitch<D> + n * 8);
      mma<H>(sums[n], l, r[0], r[1]);
      mma<H>(sums[n + 1], l, r[2], r[3]);
    }
  }
}

// Stores or adds a lane's part of 16 rows of results, from row `first` on.
template <class H = Half, int C>
__device__ void put_tile(const View& to, std::int64_t first, std::int64_t column, const float (&sums)[C][4],
                         bool add) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const std::int64_t row = first + g + 8 * side;
    if (row >= to.rows) continue;
    Half* pointer = static_cast<Half*>(to.data) + row * to.stride + column + 2 * t;
#pragma unroll
    for (int n = 0; n < C; ++n) {
      auto* two = reinterpret_cast<std::uint32_t*>(pointer + n * 8);
      const float2 before = add ? unpack<H>(*two) : float2{0, 0};
      *two = pack<H>(before.x + sums[n][2 * side], before.y + sums[n][2 * side + 1]);
    }
  }
}

}  // namespace thimble::cuda
