// A block has 8 or 16 outputs of all rows; its warps share the columns, 32 at a time in turn. A lane fetches 16 bytes of a
// weight's row and of each of its rows of x, and multiplies them as they lie: which columns stand where in an mma does not
// matter, as long as both sides agree. The warps' sums are added in their order.
#include "ops/cuda/linear_rows.h"

#include "ops/cuda/mma.cuh"

namespace thimble::cuda {

namespace {

constexpr int kWarps = 8, kStep = 32;  // columns of a warp's step: 4 lanes with 8 each

__device__ uint4 eight(const View& from, std::int64_t row, int column) {
  if (row >= from.rows || column >= from.cols) return {};
  return *reinterpret_cast<const uint4*>(static_cast<const Half*>(from.data) + row * from.stride + column);
}

// M: sixteens of rows, O: eights of outputs, U: steps that are fetched together.
template <class H, int M, int O, int U>
__global__ void __launch_bounds__(kWarps* kWarp) few_rows(View x, View w, View bias, View y) {
  __shared__ float sums[kWarps][16 * M][8 * O + 1];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4, t = lane % 4;
  const std::int64_t first = std::int64_t{blockIdx.x} * 8 * O;
  float sum[M][O][4] = {};
  for (int step = warp * kStep; step < x.cols; step += U * kWarps * kStep) {
    uint4 left[U][M][2], right[U][O];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int column = step + u * kWarps * kStep + t * 8;
#pragma unroll
      for (int o = 0; o < O; ++o) right[u][o] = eight(w, first + 8 * o + g, column);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        left[u][m][0] = eight(x, 16 * m + g, column);
        left[u][m][1] = eight(x, 16 * m + g + 8, column);
      }
    }
#pragma unroll
    for (int u = 0; u < U; ++u)
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const uint4 above = left[u][m][0], below = left[u][m][1];
        const std::uint32_t a[4] = {above.x, below.x, above.y, below.y},
                            b[4] = {above.z, below.z, above.w, below.w};
#pragma unroll
        for (int o = 0; o < O; ++o) {
          mma<H>(sum[m][o], a, right[u][o].x, right[u][o].y);
          mma<H>(sum[m][o], b, right[u][o].z, right[u][o].w);
        }
      }
  }
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int o = 0; o < O; ++o)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[warp][16 * m + g + i / 2 * 8][8 * o + 2 * t + i % 2] = sum[m][o][i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 16 * M * 8 * O; i += kWarps * kWarp) {
    const int row = i / (8 * O), column = i % (8 * O);
    const std::int64_t output = first + column;
    if (row >= y.rows || output >= y.cols) continue;
    float total = 0;
#pragma unroll
    for (int part = 0; part < kWarps; ++part) total += sums[part][row][column];
    store_one(y, row, output, bias ? total + load_one(bias, 0, output) : total);
  }
}

template <class H, int M, int O, int U>
void launch(cudaStream_t stream, const Linear& op) {
  few_rows<H, M, O, U><<<blocks_for(op.w.rows, 8 * O), kWarps * kWarp, 0, stream>>>(View(op.x), View(op.w),
                                                                                    View(op.b), View(op.y));
  launched("linear of few rows");
}

template <class H>
void run(cudaStream_t stream, const Linear& op) {
  if (op.x.rows <= 16)
    launch<H, 1, 1, 4>(stream, op);
  else if (op.x.rows <= 32)
    launch<H, 2, 1, 2>(stream, op);
  else
    launch<H, 4, 2, 1>(stream, op);
}

}  // namespace

bool takes_linear_rows(const Linear& op) {
  return op.x.dtype != DType::f32 && op.w.dtype == op.x.dtype && op.x.rows <= kFewRows &&
         vectorised(op.x, {}) && vectorised(op.w, {});
}

void linear_rows(const Context& context, const Linear& op) {
  if (op.y.count() == 0) return;
  (op.x.dtype == DType::f16 ? run<__half> : run<Half>)(stream_of(context), op);
}

}  // namespace thimble::cuda
