#include "ops/cuda/kernels.h"

#include <algorithm>

#include "ops/attention.h"
#include "ops/cached_attention.h"
#include "ops/cuda/fused.h"
#include "ops/cuda/scratch.h"
#include "ops/cuda_plugin.h"
#include "ops/head_loss.h"
#include "ops/rope.h"

namespace thimble::cuda {

namespace {

constexpr DTypes kF32 = dtypes({DType::f32});
constexpr DTypes kRows = dtypes({DType::f32, DType::bf16, DType::f16});
constexpr bool kWide = true;
constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));

}  // namespace

Kernels kernels(Op op) {
  switch (op) {
    case Op::embedding:
      return {embedding_forward, embedding_backward, kRows, kWide};
    case Op::smear:
      return {smear_forward, smear_backward, kRows, kWide};
    case Op::rmsnorm:
      return {rmsnorm_forward, rmsnorm_backward, kRows, kWide};
    case Op::layernorm:
      return {layernorm_forward, layernorm_backward, kRows, kWide};
    case Op::linear:
      return {linear_forward, linear_backward, kRows};
    case Op::rope:
      return {rope_forward, rope_backward, kRows, kWide};
    case Op::attention:
      return {attention_forward, attention_backward, kRows};
    case Op::exclusive_attention:
      return {exclusive_attention_forward, exclusive_attention_backward, kRows};
    case Op::cached_attention:
      return {cached_attention_forward, nullptr, kRows};
    case Op::activation:
      return {activation_forward, activation_backward, kRows, kWide};
    case Op::add_scaled:
      return {add_scaled_forward, add_scaled_backward, kRows, kWide};
    case Op::residual_mix:
      return {residual_mix_forward, residual_mix_backward, kRows, kWide};
    case Op::residual_norm:
      return {residual_norm_forward, residual_norm_backward, kRows, kWide};
    case Op::gated_skip:
      return {gated_skip_forward, gated_skip_backward, kRows, kWide};
    case Op::dropout:
      return {dropout_forward, dropout_backward, kRows, kWide};
    case Op::gather:
      return {gather_forward, gather_backward, kRows, kWide};
    case Op::softcap:
      return {softcap_forward, softcap_backward, kRows, kWide};
    case Op::head_loss:
      return {head_loss_forward, head_loss_backward, kRows};
    case Op::cast:
      return {cast_forward, cast_backward, kRows, kWide};
    case Op::fake_quant:
      return {fake_quant_forward, fake_quant_backward, kF32, kWide};
  }
  return {};
}

FusedKernel fused_kernel(std::span<const Op> ops, bool backward) {
  const auto are = [&](std::initializer_list<Op> wanted) { return std::ranges::equal(ops, wanted); };
  if (backward && are({Op::rmsnorm, Op::residual_mix})) return mix_norm_backward;
  if (!backward && are({Op::residual_mix, Op::rmsnorm})) return mix_norm_forward;
  if (!backward && are({Op::add_scaled, Op::residual_mix, Op::rmsnorm})) return sum_mix_norm_forward;
  return nullptr;
}

std::int64_t scratch_bytes(Op op, std::span<const Shape> in, const Attributes& attributes) {
  const std::int64_t N = in[0].rows, C = in[0].cols;
  switch (op) {
    case Op::embedding:
      return embedding_chunks(in[1].rows) * 2 * C * kFloat;
    case Op::smear:
    case Op::rmsnorm:
    case Op::add_scaled:
      return column_sum_bytes(N, C, 1);
    case Op::layernorm:
    case Op::residual_mix:
    case Op::gated_skip:
      return column_sum_bytes(N, C, 2);
    case Op::residual_norm:  // a mean a row, then the sums
      return N * kFloat + column_sum_bytes(N, C, 2);
    case Op::linear: {
      const std::int64_t O = in[1].rows;
      return in.size() > 2 && in[2].rows > 0
                 ? std::max(linear_bias_rows(N) * O * kFloat, column_sum_bytes(N, O, 1))
                 : 0;
    }
    case Op::rope: {  // partial sums of gains and weights; plain: a dot product a head, then either sums
      const std::int64_t heads = attributes.as<RopeAttributes>().heads, D = C / heads;
      return std::max(
          (std::min(SumBlocks::kMost, N) + 1) * (heads + D) * kFloat,
          N * heads * kFloat + std::max(column_sum_bytes(N, heads, 1), column_sum_bytes(N * heads, D, 1)));
    }
    case Op::attention:
      return attention_fact_bytes(N, attributes.as<AttentionAttributes>().heads);
    case Op::cached_attention: {  // of every part the highest score, the sum and the results
      const auto at = attributes.as<CachedAttentionAttributes>();
      const std::int64_t parts = cached_attention_parts(N, at.context);
      return parts > 1 ? N * parts * (C + 2 * at.heads) * kFloat : 0;
    }
    case Op::head_loss: {  // logits in f32; beside 16 bits their gradients behind them
      const std::int64_t rows = std::min<std::int64_t>(attributes.as<HeadLossAttributes>().chunk_rows, N);
      return rows * head_loss_stride(in[1].rows) * (in[0].dtype != DType::f32 ? kFloat + 2 : kFloat);
    }
    default:
      return 0;
  }
}

}  // namespace thimble::cuda
