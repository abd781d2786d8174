// A warp has a row's kv head and the query heads that share it, one after the other: dv is summed in their order.
#include "ops/exclusive_attention.h"

#include "ops/cuda/kernels.h"
#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

namespace {

constexpr int kLargestHead = 128;

__device__ float dot(const View& a, std::int64_t a_column, const View& b, std::int64_t b_column,
                     std::int64_t row, int size, int lane) {
  float sum = 0;
  for (int d = lane; d < size; d += kWarp)
    sum += load_one(a, row, a_column + d) * load_one(b, row, b_column + d);
  return warp_sum(sum);
}

__device__ float length_of(const View& v, std::int64_t column, std::int64_t row, int size, int lane) {
  const float length = sqrtf(dot(v, column, v, column, row, size, lane));
  return length < static_cast<float>(kSmallestValueNorm) ? static_cast<float>(kSmallestValueNorm) : length;
}

}  // namespace

void exclusive_attention_forward(const Context& context, const OpCall& call) {
  const ExclusiveAttention op(call);
  const View y(op.y), v(op.v), z(op.z);
  const int size = static_cast<int>(op.head_size()), group = static_cast<int>(op.group()),
            kv_heads = op.at.kv_heads;
  for_each_row("exclusive_attention", stream_of(context), op.y.rows * kv_heads,
               [=] __device__(std::int64_t index, int lane) {
                 const std::int64_t row = index / kv_heads, kv = index % kv_heads * size;
                 const float length = length_of(v, kv, row, size, lane);
                 for (int g = 0; g < group; ++g) {
                   const std::int64_t column = kv * group + g * size;
                   const float share = dot(y, column, v, kv, row, size, lane) / length;
                   for (int d = lane; d < size; d += kWarp)
                     store_one(z, row, column + d,
                               load_one(y, row, column + d) - share * load_one(v, row, kv + d) / length);
                 }
               });
}

void exclusive_attention_backward(const Context& context, const OpCall& call) {
  const ExclusiveAttention op(call);
  if (op.head_size() > kLargestHead)
    refuse("[exclusive_attention] expected a head size of at most 128", op.head_size());
  const View y(op.y), v(op.v), dz(op.dz), dy(op.dy), dv(op.dv);
  const int size = static_cast<int>(op.head_size()), group = static_cast<int>(op.group()),
            kv_heads = op.at.kv_heads;
  const bool add_dy = op.add_dy, add_dv = op.add_dv;
  for_each_row("exclusive_attention backward", stream_of(context), op.y.rows * kv_heads,
               [=] __device__(std::int64_t index, int lane) {
                 const std::int64_t row = index / kv_heads, kv = index % kv_heads * size;
                 const float length = length_of(v, kv, row, size, lane);
                 constexpr int kMost = kLargestHead / kWarp;  // columns of a lane
                 float sum[kMost] = {};
                 for (int g = 0; g < group; ++g) {
                   const std::int64_t column = kv * group + g * size;
                   const float yu = dot(y, column, v, kv, row, size, lane) / length;
                   const float zu = dot(dz, column, v, kv, row, size, lane) / length;
#pragma unroll
                   for (int i = 0; i < kMost; ++i) {
                     const int d = lane + i * kWarp;
                     if (d >= size) continue;
                     const float u = load_one(v, row, kv + d) / length, slope = load_one(dz, row, column + d);
                     sum[i] -= (zu * load_one(y, row, column + d) + yu * slope - 2 * yu * zu * u) / length;
                     float result[1] = {slope - zu * u};
                     put(dy, row, column + d, result, add_dy);
                   }
                 }
#pragma unroll
                 for (int i = 0; i < kMost; ++i) {
                   const int d = lane + i * kWarp;
                   float result[1] = {sum[i]};
                   if (d < size) put(dv, row, kv + d, result, add_dv);
                 }
               });
}

}  // namespace thimble::cuda
