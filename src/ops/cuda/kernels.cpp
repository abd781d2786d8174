#include "ops/cuda/kernels.h"

#include <algorithm>

#include "ops/attention.h"
#include "ops/cuda/scratch.h"
#include "ops/head_loss.h"
#include "ops/rope.h"

namespace thimble::cuda {

namespace {

constexpr DTypes kF32 = dtypes({DType::f32});
constexpr DTypes kRows = dtypes({DType::f32, DType::bf16, DType::f16});
constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));

std::int64_t embedding_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  return embedding_chunks(in[1].rows) * 2 * in[0].cols * kFloat;
}

std::int64_t smear_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  return column_sum_bytes(in[0].rows, in[0].cols, 1);
}

std::int64_t rmsnorm_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  return column_sum_bytes(in[0].rows, in[0].cols, 1);
}

std::int64_t layernorm_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  return column_sum_bytes(in[0].rows, in[0].cols, 2);
}

std::int64_t linear_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  const std::int64_t N = in[0].rows, O = in[1].rows;
  const bool bias = in.size() > 2 && in[2].rows > 0;
  return bias ? std::max(linear_bias_rows(N) * O * kFloat, column_sum_bytes(N, O, 1)) : 0;
}

std::int64_t rope_scratch_bytes(std::span<const Shape> in, const Attributes& attributes) {
  // Partial sums of gains and weights; plain: a dot product a head, then either sums.
  const std::int64_t N = in[0].rows, heads = attributes.as<RopeAttributes>().heads, D = in[0].cols / heads;
  return std::max(
      (std::min(SumBlocks::kMost, N) + 1) * (heads + D) * kFloat,
      N * heads * kFloat + std::max(column_sum_bytes(N, heads, 1), column_sum_bytes(N * heads, D, 1)));
}

std::int64_t attention_scratch_bytes(std::span<const Shape> in, const Attributes& attributes) {
  return attention_fact_bytes(in[0].rows, attributes.as<AttentionAttributes>().heads);
}

std::int64_t cached_attention_scratch_bytes(std::span<const Shape> in, const Attributes& attributes) {
  // Of every part the highest score, the sum and the results.
  const auto at = attributes.as<CachedAttentionAttributes>();
  const std::int64_t N = in[0].rows, C = in[0].cols, parts = cached_attention_parts(N, at.context);
  return parts > 1 ? N * parts * (C + 2 * at.heads) * kFloat : 0;
}

std::int64_t add_scaled_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  return column_sum_bytes(in[0].rows, in[0].cols, 1);
}

std::int64_t residual_mix_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  return column_sum_bytes(in[0].rows, in[0].cols, 2);
}

std::int64_t residual_norm_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  // A mean a row, then the sums.
  return in[0].rows * kFloat + column_sum_bytes(in[0].rows, in[0].cols, 2);
}

std::int64_t gated_skip_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  return column_sum_bytes(in[0].rows, in[0].cols, 2);
}

std::int64_t head_loss_scratch_bytes(std::span<const Shape> in, const Attributes& attributes) {
  // Logits in f32; beside 16 bits their gradients behind them.
  const std::int64_t rows =
      std::min<std::int64_t>(attributes.as<HeadLossAttributes>().chunk_rows, in[0].rows);
  return rows * head_loss_stride(in[1].rows) * (in[0].dtype != DType::f32 ? kFloat + 2 : kFloat);
}

}  // namespace

constinit const PluginOp kEmbedding = {"embedding",
                                       {.forward = embedding_forward,
                                        .backward = embedding_backward,
                                        .rows = kRows,
                                        .wide_gradients = true,
                                        .scratch_bytes = embedding_scratch_bytes}};
constinit const PluginOp kSmear = {"smear",
                                   {.forward = smear_forward,
                                    .backward = smear_backward,
                                    .rows = kRows,
                                    .wide_gradients = true,
                                    .scratch_bytes = smear_scratch_bytes}};
constinit const PluginOp kRmsNorm = {"rmsnorm",
                                     {.forward = rmsnorm_forward,
                                      .backward = rmsnorm_backward,
                                      .rows = kRows,
                                      .wide_gradients = true,
                                      .scratch_bytes = rmsnorm_scratch_bytes}};
constinit const PluginOp kLayerNorm = {"layernorm",
                                       {.forward = layernorm_forward,
                                        .backward = layernorm_backward,
                                        .rows = kRows,
                                        .wide_gradients = true,
                                        .scratch_bytes = layernorm_scratch_bytes}};
constinit const PluginOp kLinear = {"linear",
                                    {.forward = linear_forward,
                                     .backward = linear_backward,
                                     .rows = kRows,
                                     .scratch_bytes = linear_scratch_bytes}};
constinit const PluginOp kRope = {"rope",
                                  {.forward = rope_forward,
                                   .backward = rope_backward,
                                   .rows = kRows,
                                   .wide_gradients = true,
                                   .scratch_bytes = rope_scratch_bytes}};
constinit const PluginOp kAttention = {"attention",
                                       {.forward = attention_forward,
                                        .backward = attention_backward,
                                        .rows = kRows,
                                        .scratch_bytes = attention_scratch_bytes}};
constinit const PluginOp kExclusiveAttention = {
    "exclusive_attention",
    {.forward = exclusive_attention_forward, .backward = exclusive_attention_backward, .rows = kRows}};
constinit const PluginOp kCachedAttention = {
    "cached_attention",
    {.forward = cached_attention_forward, .rows = kRows, .scratch_bytes = cached_attention_scratch_bytes}};
constinit const PluginOp kActivation = {
    "activation",
    {.forward = activation_forward, .backward = activation_backward, .rows = kRows, .wide_gradients = true}};
constinit const PluginOp kAddScaled = {"add_scaled",
                                       {.forward = add_scaled_forward,
                                        .backward = add_scaled_backward,
                                        .rows = kRows,
                                        .wide_gradients = true,
                                        .scratch_bytes = add_scaled_scratch_bytes}};
constinit const PluginOp kResidualMix = {"residual_mix",
                                         {.forward = residual_mix_forward,
                                          .backward = residual_mix_backward,
                                          .rows = kRows,
                                          .wide_gradients = true,
                                          .scratch_bytes = residual_mix_scratch_bytes}};
constinit const PluginOp kResidualNorm = {"residual_norm",
                                          {.forward = residual_norm_forward,
                                           .backward = residual_norm_backward,
                                           .rows = kRows,
                                           .wide_gradients = true,
                                           .scratch_bytes = residual_norm_scratch_bytes}};
constinit const PluginOp kGatedSkip = {"gated_skip",
                                       {.forward = gated_skip_forward,
                                        .backward = gated_skip_backward,
                                        .rows = kRows,
                                        .wide_gradients = true,
                                        .scratch_bytes = gated_skip_scratch_bytes}};
constinit const PluginOp kDropout = {
    "dropout",
    {.forward = dropout_forward, .backward = dropout_backward, .rows = kRows, .wide_gradients = true}};
constinit const PluginOp kGather = {
    "gather",
    {.forward = gather_forward, .backward = gather_backward, .rows = kRows, .wide_gradients = true}};
constinit const PluginOp kSoftcap = {
    "softcap",
    {.forward = softcap_forward, .backward = softcap_backward, .rows = kRows, .wide_gradients = true}};
constinit const PluginOp kHeadLoss = {"head_loss",
                                      {.forward = head_loss_forward,
                                       .backward = head_loss_backward,
                                       .rows = kRows,
                                       .scratch_bytes = head_loss_scratch_bytes}};
constinit const PluginOp kCast = {
    "cast", {.forward = cast_forward, .backward = cast_backward, .rows = kRows, .wide_gradients = true}};
constinit const PluginOp kFakeQuant = {
    "fake_quant",
    {.forward = fake_quant_forward, .backward = fake_quant_backward, .rows = kF32, .wide_gradients = true}};

}  // namespace thimble::cuda
