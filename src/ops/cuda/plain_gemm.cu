// A matrix product in plain CUDA: 16 x 16 results per block, each summed in a fixed order.
#include "ops/cuda/gemm.h"
#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

namespace {

constexpr int kTile = 16;

// One operand of a batch of products; the grid's z dimension is the batch.
struct BatchedOperand {
  View view;
  std::int64_t distance;
  bool transposed = false;

  // The matrix of this block.
  __device__ View of_block() const {
    View one = view;
    const std::int64_t bytes = blockIdx.z * distance * (view.half ? 2 : 4);
    one.data = static_cast<char*>(view.data) + bytes;
    return one;
  }
};

__device__ float element(const View& matrix, bool transposed, std::int64_t row, std::int64_t column) {
  return transposed ? load_one(matrix, column, row) : load_one(matrix, row, column);
}

__global__ void __launch_bounds__(kTile* kTile)
    product_tile(BatchedOperand batch_a, BatchedOperand batch_b, BatchedOperand bases, BatchedOperand results,
                 std::int64_t inner, float scale, float base_scale) {
  const View a = batch_a.of_block(), b = batch_b.of_block(), c = results.of_block();
  __shared__ float left[kTile][kTile + 1], right[kTile][kTile + 1];
  const int x = threadIdx.x, y = threadIdx.y;
  const std::int64_t row = std::int64_t{blockIdx.y} * kTile + y,
                     column = std::int64_t{blockIdx.x} * kTile + x;
  float sum = 0;
  for (std::int64_t k = 0; k < inner; k += kTile) {
    left[y][x] = row < c.rows && k + x < inner ? element(a, batch_a.transposed, row, k + x) : 0.0f;
    right[y][x] = k + y < inner && column < c.cols ? element(b, batch_b.transposed, k + y, column) : 0.0f;
    __syncthreads();
    const int count = inner - k < kTile ? static_cast<int>(inner - k) : kTile;
    for (int i = 0; i < count; ++i) sum += left[y][i] * right[i][x];
    __syncthreads();
  }
  if (row >= c.rows || column >= c.cols) return;
  const float base = base_scale != 0 ? base_scale * load_one(bases.of_block(), row, column) : 0.0f;
  store_one(c, row, column, fmaf(scale, sum, base));
}

}  // namespace

void plain_gemm(const Context& context, const Product& p) {
  if (p.result.count() == 0) return;
  const std::int64_t inner = p.a.transposed ? p.a.matrix.rows : p.a.matrix.cols;
  const unsigned down = blocks_for(p.result.rows, kTile);
  if (down > 65535) refuse("expected a plain product of at most 1048560 rows", p.result.rows);
  if (p.count > 65535) refuse("expected a batch of at most 65535 plain products", p.count);
  const dim3 grid(blocks_for(p.result.cols, kTile), down, static_cast<unsigned>(p.count));
  product_tile<<<grid, dim3(kTile, kTile), 0, stream_of(context)>>>(
      {View(p.a.matrix), p.a_distance, p.a.transposed}, {View(p.b.matrix), p.b_distance, p.b.transposed},
      {View(p.base), p.result_distance}, {View(p.result), p.result_distance}, inner, p.scale, p.base_scale);
  launched("plain product");
}

void plain_gemm(const Context& context, const Operand& a, const Operand& b, const Tensor& c, bool add) {
  plain_gemm(context, {.a = a, .b = b, .base = c, .result = c, .base_scale = add ? 1.0f : 0.0f});
}

}  // namespace thimble::cuda
