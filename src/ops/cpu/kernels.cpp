#include "ops/cpu/kernels.h"

#include <algorithm>

#include "ops/attention.h"
#include "ops/cast.h"
#include "ops/cpu/attention_tiles.h"
#include "ops/cpu/row_blocks.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/head_loss.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/residual.h"
#include "ops/rope.h"

namespace thimble::cpu {

namespace {

constexpr DTypes kF32 = dtypes({DType::f32});
constexpr DTypes kRows = dtypes({DType::f32, DType::bf16});
constexpr DTypes kStorage = dtypes({DType::f32, DType::bf16, DType::f16});
constexpr DTypes kStored = dtypes({DType::bf16, DType::f16, DType::i8});

std::int64_t rope_scratch_bytes(std::span<const Shape> in, const Attributes& attributes) {
  const std::int64_t N = in[0].rows, C = in[0].cols;
  const auto heads = attributes.as<RopeAttributes>().heads;
  return row_sum_bytes(N, heads + 2 * C / heads);
}

std::int64_t attention_scratch_bytes(std::span<const Shape> in, const Attributes& attributes) {
  return ThreadScratch::bytes(attention_thread_bytes(in[0], attributes.as<AttentionAttributes>()));
}

std::int64_t cached_attention_scratch_bytes(std::span<const Shape> in, const Attributes& attributes) {
  const std::int64_t C = in[0].cols;
  return ThreadScratch::bytes(
      cached_attention_thread_bytes(C / attributes.as<CachedAttentionAttributes>().heads));
}

}  // namespace

constinit const Kernels kRope = {.forward = rope_forward,
                                 .backward = rope_backward,
                                 .rows = kRows,
                                 .wide_gradients = true,
                                 .scratch_bytes = rope_scratch_bytes};
constinit const Kernels kAttention = {.forward = attention_forward,
                                      .backward = attention_backward,
                                      .rows = kRows,
                                      .scratch_bytes = attention_scratch_bytes};
constinit const Kernels kExclusiveAttention = {.forward = exclusive_attention_forward,
                                               .backward = exclusive_attention_backward,
                                               .rows = kRows,
                                               .wide_gradients = true};
constinit const Kernels kCachedAttention = {
    .forward = cached_attention_forward, .rows = kRows, .scratch_bytes = cached_attention_scratch_bytes};

}  // namespace thimble::cpu
