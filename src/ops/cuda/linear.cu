// linear: products with cuBLASLt (gemm.h), in f32 if there is a bias; another kernel for few rows.
#include "ops/linear.h"

#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/gemm.h"
#include "ops/cuda/mma.cuh"

namespace thimble::cuda {

namespace {

// Rows per chunk of f32 products, in a linear with a bias.
std::int64_t linear_bias_rows(std::int64_t rows) {
  return std::min<std::int64_t>(rows, 4096);
}

// A product of few rows, for decoding: y = x w^T + b in bf16 or f16.
//
// Every element is summed over the columns in an order that depends only on their number, so the
// other rows of a call do not change the bits of a row. Weights are read once; there is one block
// per 8 or 16 outputs.
//
// A block computes 8 or 16 outputs of all rows; its warps take turns at 32 columns. A lane fetches
// 16 bytes of a row of weights and of each of its rows of x and multiplies them in that order: the
// assignment of columns to mma operands does not matter if both sides agree. The sums of the warps
// are added in order.
constexpr int kWarps = 8, kStep = 32;  // columns per step of a warp: 4 lanes with 8 each

__device__ uint4 eight(const View& from, std::int64_t row, int column) {
  if (row >= from.rows || column >= from.cols) return {};
  return *reinterpret_cast<const uint4*>(static_cast<const Half*>(from.data) + row * from.stride + column);
}

// M: rows / 16, O: outputs / 8, U: steps fetched together.
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
void launch_few_rows(cudaStream_t stream, const Linear& op) {
  few_rows<H, M, O, U><<<blocks_for(op.w.rows, 8 * O), kWarps * kWarp, 0, stream>>>(View(op.x), View(op.w),
                                                                                    View(op.b), View(op.y));
  launched("linear of few rows");
}

template <class H>
void linear_of_few_rows(cudaStream_t stream, const Linear& op) {
  if (op.x.rows <= 16)
    launch_few_rows<H, 1, 1, 4>(stream, op);
  else if (op.x.rows <= 32)
    launch_few_rows<H, 2, 1, 2>(stream, op);
  else
    launch_few_rows<H, 4, 2, 1>(stream, op);
}

// Whether few_rows supports the call: 16 bits, at most kFewRows rows, 16-byte aligned.
bool takes_linear_rows(const Linear& op) {
  return op.x.dtype != DType::f32 && op.w.dtype == op.x.dtype && op.x.rows <= kFewRows &&
         vectorized(op.x, {}) && vectorized(op.w, {});
}

void linear_rows(const Context& context, const Linear& op) {
  if (op.y.count() == 0) return;
  (op.x.dtype == DType::f16 ? linear_of_few_rows<__half> : linear_of_few_rows<Half>)(stream_of(context), op);
}

template <int V>
void add_bias(cudaStream_t stream, const Tensor& sums, const Tensor& bias, const Tensor& out) {
  const View from(sums), b(bias), y(out);
  for_each_pack<V>("linear bias", stream, out.rows, out.cols, [=] __device__(std::int64_t row, int c) {
    float a[V];
    load(from, row, c, a);
    float shift[V];
    load(b, 0, c, shift);
#pragma unroll
    for (int i = 0; i < V; ++i) a[i] += shift[i];
    store(y, row, c, a);
  });
}

void product(const Context& context, const Linear& op, const Tensor& x, const Tensor& y) {
  if (op.at.invariant && x.dtype == DType::f32)
    plain_gemm(context, {x}, transposed(op.w), y, false);
  else
    gemm(context, {x}, transposed(op.w), y, false);
}

// Products in f32, in chunks of rows, so that a 16-bit result is rounded once, with its bias.
void with_bias(const Context& context, const Linear& op, void* scratch) {
  const std::int64_t chunk = linear_bias_rows(op.x.rows);
  for (std::int64_t first = 0; first < op.x.rows; first += chunk) {
    const std::int64_t rows = first + chunk < op.x.rows ? chunk : op.x.rows - first;
    const Tensor sums{scratch, rows, op.w.rows, op.w.rows, DType::f32, Device::cuda},
        y = op.y.row_range(first, rows);
    product(context, op, op.x.row_range(first, rows), sums);
    if (vectorized(sums, {op.b, y}))
      add_bias<kVector>(stream_of(context), sums, op.b, y);
    else
      add_bias<1>(stream_of(context), sums, op.b, y);
  }
}

template <int V>
void bias_gradient(cudaStream_t stream, const Linear& op, void* scratch) {
  const View dy(op.dy);
  add_column_sums<V, 1>("linear bias", stream, op.dy.rows, op.dy.cols, scratch, {{View(op.db)}},
                        [=] __device__(std::int64_t row, int c, float(&sums)[1][V]) {
                          float g[V];
                          load(dy, row, c, g);
#pragma unroll
                          for (int i = 0; i < V; ++i) sums[0][i] += g[i];
                        });
}

void linear_forward(const Context& context, const OpCall& call) {
  const Linear op(call);
  if (op.at.invariant && takes_linear_rows(op)) return linear_rows(context, op);
  if (op.b) return with_bias(context, op, call.scratch.data);
  product(context, op, op.x, op.y);
}

void linear_backward(const Context& context, const OpCall& call) {
  const Linear op(call);
  if (op.dx) gemm(context, {op.dy}, {op.w}, op.dx, op.add_dx);
  if (op.dw) gemm(context, transposed(op.dy), {op.x}, op.dw, true);
  if (!op.db) return;
  if (vectorized(op.dy, {}))
    bias_gradient<kVector>(stream_of(context), op, call.scratch.data);
  else
    bias_gradient<1>(stream_of(context), op, call.scratch.data);
}

std::int64_t linear_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  const std::int64_t N = in[0].rows, O = in[1].rows;
  const bool bias = in.size() > 2 && in[2].rows > 0;
  return bias ? std::max(linear_bias_rows(N) * O * kFloatBytes, column_sum_bytes(N, O, 1)) : 0;
}

}  // namespace

extern const PluginOp kLinear = {"linear",
                                 {.forward = linear_forward,
                                  .backward = linear_backward,
                                  .rows = kRowTypes,
                                  .scratch_bytes = linear_scratch_bytes}};

}  // namespace thimble::cuda
