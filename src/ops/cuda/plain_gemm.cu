// A matrix product in plain CUDA: 16 x 16 results per block, one thread each, sums in the order of the inner index.
#include "ops/cuda/gemm.h"
#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

namespace {

constexpr int kTile = 16;

struct Side {
  View view;
  bool transposed;

  __device__ float at(std::int64_t row, std::int64_t column) const {
    return transposed ? load_one(view, column, row) : load_one(view, row, column);
  }
};

__global__ void __launch_bounds__(kTile* kTile)
    product(Side a, Side b, View c, std::int64_t inner, bool add) {
  __shared__ float left[kTile][kTile + 1], right[kTile][kTile + 1];
  const int x = threadIdx.x, y = threadIdx.y;
  const std::int64_t row = std::int64_t{blockIdx.y} * kTile + y,
                     column = std::int64_t{blockIdx.x} * kTile + x;
  float sum = 0;
  for (std::int64_t k = 0; k < inner; k += kTile) {
    left[y][x] = row < c.rows && k + x < inner ? a.at(row, k + x) : 0.0f;
    right[y][x] = k + y < inner && column < c.cols ? b.at(k + y, column) : 0.0f;
    __syncthreads();
    const int count = inner - k < kTile ? static_cast<int>(inner - k) : kTile;
    for (int i = 0; i < count; ++i) sum += left[y][i] * right[i][x];
    __syncthreads();
  }
  if (row >= c.rows || column >= c.cols) return;
  float result[1] = {sum};
  put(c, row, column, result, add);
}

}  // namespace

void plain_gemm(const Context& context, const Operand& a, const Operand& b, const Tensor& c, bool add) {
  if (c.count() == 0) return;
  const std::int64_t inner = a.transposed ? a.matrix.rows : a.matrix.cols;
  const unsigned down = blocks_for(c.rows, kTile);
  if (down > 65535) refuse("a plain product has at most 1048560 rows", c.rows);
  product<<<dim3(blocks_for(c.cols, kTile), down), dim3(kTile, kTile), 0, stream_of(context)>>>(
      {View(a.matrix), a.transposed}, {View(b.matrix), b.transposed}, View(c), inner, add);
  launched("plain product");
}

}  // namespace thimble::cuda
