#include "ops/cpu/kernels.h"

#include "base/error.h"
#include "ops/attention.h"
#include "ops/cpu/attention_tiles.h"
#include "ops/cpu/row_blocks.h"
#include "ops/head_loss.h"
#include "ops/rope.h"

namespace thimble::cpu {

Kernels kernels(Op op) {
  switch (op) {
    case Op::embedding:
      return {embedding_forward, embedding_backward};
    case Op::smear:
      return {smear_forward, smear_backward};
    case Op::rmsnorm:
      return {rmsnorm_forward, rmsnorm_backward};
    case Op::layernorm:
      return {layernorm_forward, layernorm_backward};
    case Op::linear:
      return {linear_forward, linear_backward};
    case Op::rope:
      return {rope_forward, rope_backward};
    case Op::attention:
      return {attention_forward, attention_backward};
    case Op::exclusive_attention:
      return {exclusive_attention_forward, exclusive_attention_backward};
    case Op::cached_attention:
      return {cached_attention_forward, nullptr};
    case Op::activation:
      return {activation_forward, activation_backward};
    case Op::add_scaled:
      return {add_scaled_forward, add_scaled_backward};
    case Op::residual_mix:
      return {residual_mix_forward, residual_mix_backward};
    case Op::residual_norm:
      return {residual_norm_forward, residual_norm_backward};
    case Op::dropout:
      return {dropout_forward, dropout_backward};
    case Op::gather:
      return {gather_forward, gather_backward};
    case Op::softcap:
      return {softcap_forward, softcap_backward};
    case Op::head_loss:
      return {head_loss_forward, head_loss_backward};
    case Op::fake_quant:
      return {fake_quant_forward, fake_quant_backward};
  }
  fail("[cpu] op {} has no kernels", static_cast<int>(op));
}

std::int64_t scratch_bytes(Op op, std::span<const Shape> in, const Attributes& attributes) {
  const std::int64_t N = in[0].rows, C = in[0].cols;
  switch (op) {
    case Op::smear:
    case Op::rmsnorm:
    case Op::add_scaled:
      return row_sum_bytes(N, C);
    case Op::layernorm:
    case Op::residual_mix:
    case Op::residual_norm:
      return row_sum_bytes(N, 2 * C);
    case Op::linear:
      return row_sum_bytes(N, in[1].rows);
    case Op::rope: {
      const auto heads = attributes.as<RopeAttributes>().heads;
      return row_sum_bytes(N, heads + 2 * C / heads);
    }
    case Op::attention: {
      const auto at = attributes.as<AttentionAttributes>();
      const std::int64_t D = C / at.heads;
      const std::int64_t floats =
          std::max(forward_tile_floats(D, at.heads / at.kv_heads), backward_tile_floats(D));
      return align_up(floats, kFloatsPerLine) * max_threads() * static_cast<std::int64_t>(sizeof(float));
    }
    case Op::head_loss: {
      const std::int64_t rows = std::min<std::int64_t>(attributes.as<HeadLossAttributes>().chunk_rows, N);
      return rows * in[1].rows * static_cast<std::int64_t>(sizeof(float));
    }
    default:
      return 0;
  }
}

}  // namespace thimble::cpu
