#include "ops/cpu/kernels.h"

#include "base/error.h"
#include "ops/attention.h"
#include "ops/cached_attention.h"
#include "ops/cpu/attention_tiles.h"
#include "ops/cpu/row_blocks.h"
#include "ops/head_loss.h"
#include "ops/linear.h"
#include "ops/rope.h"

namespace thimble::cpu {

namespace {

constexpr DTypes kF32 = dtypes({DType::f32});
constexpr DTypes kRows = dtypes({DType::f32, DType::bf16});
constexpr DTypes kStorage = dtypes({DType::f32, DType::bf16, DType::f16});
constexpr DTypes kStored = dtypes({DType::bf16, DType::f16, DType::i8});
constexpr bool kWide = true;

}  // namespace

Kernels kernels(Op op) {
  switch (op) {
    case Op::embedding:
      return {embedding_forward, embedding_backward, kRows | kStored, kWide};
    case Op::smear:
      return {smear_forward, smear_backward, kRows, kWide};
    case Op::rmsnorm:
      return {rmsnorm_forward, rmsnorm_backward, kRows, kWide};
    case Op::layernorm:
      return {layernorm_forward, layernorm_backward, kRows, kWide};
    case Op::linear:
      return {linear_forward, linear_backward, kRows, false, kStored};
    case Op::rope:
      return {rope_forward, rope_backward, kRows, kWide};
    case Op::attention:
      return {attention_forward, attention_backward, kRows};
    case Op::exclusive_attention:
      return {exclusive_attention_forward, exclusive_attention_backward, kRows, kWide};
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
      return {head_loss_forward, head_loss_backward, kRows, false, kStored};
    case Op::cast:
      return {cast_forward, cast_backward, kStorage, kWide};
    case Op::fake_quant:
      return {fake_quant_forward, fake_quant_backward, kF32, kWide};
  }
  fail("[cpu] op {} has no kernels", static_cast<int>(op));
}

std::int64_t scratch_bytes(Op op, std::span<const Shape> in, const Attributes& attributes) {
  const std::int64_t N = in[0].rows, C = in[0].cols;
  switch (op) {
    case Op::smear:
      return row_bytes(C) + row_sum_bytes(N, C);
    case Op::rmsnorm:
    case Op::add_scaled:
      return row_sum_bytes(N, C);
    case Op::layernorm:
    case Op::residual_mix:
    case Op::residual_norm:
      return row_sum_bytes(N, 2 * C);
    case Op::gated_skip:
      return 2 * row_bytes(C) + row_sum_bytes(N, 2 * C);
    case Op::linear:
      return linear_scratch_bytes(in[0], in[1], attributes.as<LinearAttributes>());
    case Op::rope: {
      const auto heads = attributes.as<RopeAttributes>().heads;
      return row_sum_bytes(N, heads + 2 * C / heads);
    }
    case Op::attention:
      return ThreadScratch::bytes(attention_thread_bytes(in[0], attributes.as<AttentionAttributes>()));
    case Op::cached_attention:
      return ThreadScratch::bytes(
          cached_attention_thread_bytes(C / attributes.as<CachedAttentionAttributes>().heads));
    case Op::head_loss: {
      const std::int64_t rows = std::min<std::int64_t>(attributes.as<HeadLossAttributes>().chunk_rows, N);
      return rows * in[1].rows * static_cast<std::int64_t>(sizeof(float));
    }
    default:
      return 0;
  }
}

}  // namespace thimble::cpu
