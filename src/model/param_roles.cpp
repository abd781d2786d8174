#include "model/param_roles.h"

#include <algorithm>
#include <cmath>

namespace thimble {

namespace {

constexpr double kBigramScale = 0.05;         // parameter-golf 2.1b
constexpr std::int64_t kOrthogonalSide = 64;  // parameter-golf 2.3: smaller matrices keep the uniform init

RoleRow matrix(Role role, std::string_view golf, std::string_view transformers, bool joined = false) {
  return {role, golf, transformers, ParamGroup::matrix, joined, true, false};
}
RoleRow table(Role role, std::string_view golf, std::string_view transformers) {
  return {role, golf, transformers, ParamGroup::embedding, false, true, false};
}
// Norm weights rest at 1 and biases at 0: pulling the former to 0 is no regularisation, so neither decays.
RoleRow vector(Role role, std::string_view golf, std::string_view transformers, bool joined = false) {
  return {role, golf, transformers, ParamGroup::scalar, joined, false, true};
}
// Golf's own: AdamW of the records decays these like all the rest.
RoleRow control(Role role, std::string_view golf) {
  return {role, golf, "", ParamGroup::scalar, false, true, true};
}

std::vector<RoleRow> role_table() {
  using enum Role;
  return {
      table(token_embedding, "tok_emb.weight", "model.embed_tokens.weight"),
      table(position_embedding, "pos_emb.weight", ""),
      {head, "lm_head.weight", "lm_head.weight", ParamGroup::head, false, true, false},
      table(bigram_embedding, "bigram.embed.weight", ""),
      matrix(bigram_proj, "bigram.proj.weight", ""),
      matrix(query, "blocks.{}.attn.c_q.weight", "model.layers.{}.self_attn.q_proj.weight"),
      matrix(key, "blocks.{}.attn.c_k.weight", "model.layers.{}.self_attn.k_proj.weight", true),
      matrix(value, "blocks.{}.attn.c_v.weight", "model.layers.{}.self_attn.v_proj.weight", true),
      matrix(attn_proj, "blocks.{}.attn.proj.weight", "model.layers.{}.self_attn.o_proj.weight"),
      matrix(mlp_fc, "blocks.{}.mlp.fc.weight", ""),
      matrix(mlp_gate, "blocks.{}.mlp.gate.weight", "model.layers.{}.mlp.gate_proj.weight"),
      matrix(mlp_up, "blocks.{}.mlp.up.weight", "model.layers.{}.mlp.up_proj.weight", true),
      matrix(mlp_proj, "blocks.{}.mlp.proj.weight", "model.layers.{}.mlp.down_proj.weight"),
      vector(query_bias, "blocks.{}.attn.c_q.bias", "model.layers.{}.self_attn.q_proj.bias"),
      vector(key_bias, "blocks.{}.attn.c_k.bias", "model.layers.{}.self_attn.k_proj.bias", true),
      vector(value_bias, "blocks.{}.attn.c_v.bias", "model.layers.{}.self_attn.v_proj.bias", true),
      vector(attn_proj_bias, "blocks.{}.attn.proj.bias", "model.layers.{}.self_attn.o_proj.bias"),
      vector(mlp_fc_bias, "blocks.{}.mlp.fc.bias", ""),
      vector(mlp_gate_bias, "blocks.{}.mlp.gate.bias", "model.layers.{}.mlp.gate_proj.bias"),
      vector(mlp_up_bias, "blocks.{}.mlp.up.bias", "model.layers.{}.mlp.up_proj.bias", true),
      vector(mlp_proj_bias, "blocks.{}.mlp.proj.bias", "model.layers.{}.mlp.down_proj.bias"),
      vector(attn_norm, "blocks.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
      vector(attn_norm_bias, "blocks.{}.attn_norm.bias", ""),
      vector(mlp_norm, "blocks.{}.mlp_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
      vector(mlp_norm_bias, "blocks.{}.mlp_norm.bias", ""),
      vector(query_norm, "blocks.{}.attn.q_norm.weight", "model.layers.{}.self_attn.q_norm.weight"),
      vector(key_norm, "blocks.{}.attn.k_norm.weight", "model.layers.{}.self_attn.k_norm.weight"),
      control(q_gain, "blocks.{}.attn.q_gain"),
      control(attn_scale, "blocks.{}.attn_scale"),
      control(mlp_scale, "blocks.{}.mlp_scale"),
      control(resid_mix, "blocks.{}.resid_mix"),
      control(skip_weights, "skip_weights"),
      control(skip_gates, "skip_gates"),
      vector(embed_norm, "emb_norm.weight", ""),
      vector(embed_norm_bias, "emb_norm.bias", ""),
      vector(final_norm, "final_norm.weight", "model.norm.weight"),
      vector(final_norm_bias, "final_norm.bias", ""),
      control(smear_gate, "smear.gate"),
      control(bigram_scale, "bigram.scale"),
  };
}

Init constant(double value) {
  return {Init::Kind::constant, value};
}
Init normal(double deviation) {
  return {Init::Kind::normal, deviation};
}

// What PyTorch gives a Linear: uniform within 1 / sqrt(fan in).
Init uniform(std::int64_t columns) {
  return {Init::Kind::uniform, 1 / std::sqrt(static_cast<double>(columns))};
}

// A matrix that reads the stream.
Init init_of_matrix(const ModelConfig& config, std::int64_t rows, std::int64_t cols, double gain) {
  switch (config.init) {
    case InitKind::normal:
      return normal(config.init_std);
    case InitKind::orthogonal:
      if (std::min(rows, cols) >= kOrthogonalSide) return {Init::Kind::orthogonal, gain};
      break;
    case InitKind::golf:
      break;
  }
  return uniform(cols);
}

}  // namespace

std::span<const RoleRow> all_roles() {
  static const std::vector<RoleRow> rows = role_table();  // made once, never changed
  return rows;
}

std::optional<std::vector<std::int64_t>> dims_of(const ModelConfig& c, Role role) {
  using Dims = std::vector<std::int64_t>;
  using enum Role;
  const auto if_has = [](bool has, Dims dims) { return has ? std::optional(std::move(dims)) : std::nullopt; };
  const bool norm_weight = c.norm != NormKind::rms;
  const bool norm_bias = c.norm == NormKind::layer && c.bias;
  const bool head_norm = c.qk_norm && c.norm == NormKind::rms_weight;
  const bool qkv_bias = c.qkv_bias || c.bias, gated = c.gated_mlp(), bigram = c.bigram_buckets > 0;
  switch (role) {
    case token_embedding:
      return Dims{c.vocab_size, c.dim};
    case position_embedding:
      return if_has(c.position == PositionKind::learned, {c.context, c.dim});
    case head:
      return if_has(!c.tie_embeddings, {c.vocab_size, c.dim});
    case bigram_embedding:
      return if_has(bigram, {c.bigram_buckets, c.bigram_dim});
    case bigram_proj:
      return if_has(bigram, {c.dim, c.bigram_dim});
    case bigram_scale:
      return if_has(bigram, {});
    case smear_gate:
      return if_has(c.smear_gate, {c.dim});
    case query:
      return Dims{c.q_width(), c.dim};
    case key:
    case value:
      return Dims{c.kv_width(), c.dim};
    case attn_proj:
      return Dims{c.dim, c.q_width()};
    case mlp_fc:
      return if_has(!gated, {c.mlp_hidden, c.dim});
    case mlp_gate:
    case mlp_up:
      return if_has(gated, {c.mlp_hidden, c.dim});
    case mlp_proj:
      return Dims{c.dim, c.mlp_hidden};
    case query_bias:
      return if_has(qkv_bias, {c.q_width()});
    case key_bias:
    case value_bias:
      return if_has(qkv_bias, {c.kv_width()});
    case mlp_fc_bias:
      return if_has(c.bias && !gated, {c.mlp_hidden});
    case mlp_gate_bias:
    case mlp_up_bias:
      return if_has(c.bias && gated, {c.mlp_hidden});
    case attn_proj_bias:
    case mlp_proj_bias:
      return if_has(c.bias, {c.dim});
    case attn_norm:
    case mlp_norm:
      return if_has(norm_weight, {c.dim});
    case attn_norm_bias:
    case mlp_norm_bias:
      return if_has(norm_bias, {c.dim});
    case embed_norm:
      return if_has(c.embed_norm && norm_weight, {c.dim});
    case embed_norm_bias:
      return if_has(c.embed_norm && norm_bias, {c.dim});
    case final_norm:
      return if_has(c.final_norm && norm_weight, {c.dim});
    case final_norm_bias:
      return if_has(c.final_norm && norm_bias, {c.dim});
    case query_norm:
    case key_norm:
      return if_has(head_norm, {c.head_dim});
    case q_gain:
      return if_has(c.q_gain != GainKind::none, {c.q_gain == GainKind::head ? c.heads : 1});
    case attn_scale:
    case mlp_scale:
      return if_has(c.branch_scale, {c.dim});
    case resid_mix:
      return if_has(c.residual_mix != MixKind::none, {2, c.residual_mix == MixKind::channel ? c.dim : 1});
    case skip_weights:
      return if_has(c.unet_skips, {c.skips(), c.dim});
    case skip_gates:
      return if_has(c.skip_gates, {c.skips(), c.dim});
  }
  return std::nullopt;
}

Init init_of(const ModelConfig& c, Role role, std::int64_t rows, std::int64_t cols) {
  using enum Role;
  const bool zero_outputs = c.init != InitKind::normal;
  const double depth_scale = 1 / std::sqrt(2 * static_cast<double>(c.layers));
  switch (role) {
    case token_embedding:
    case position_embedding:
      return normal(c.embed_init_std);
    case head:
      return zero_outputs ? constant(0) : normal(c.init_std);
    case attn_proj:
    case mlp_proj:
      // normal: GPT-2's rule, so that the stream's variance does not grow with depth.
      return zero_outputs ? constant(0) : normal(c.init_std * depth_scale);
    case bigram_proj:
      return init_of_matrix(c, rows, cols, depth_scale);
    case query:
    case key:
    case value:
    case mlp_fc:
    case mlp_gate:
    case mlp_up:
      return init_of_matrix(c, rows, cols, 1);
    case attn_norm:
    case mlp_norm:
    case embed_norm:
    case final_norm:
    case query_norm:
    case key_norm:
    case attn_scale:
    case mlp_scale:
    case skip_weights:
      return constant(1);
    case q_gain:
      return constant(c.q_gain_init);
    case resid_mix:
      return {Init::Kind::first_row, 1};
    case bigram_scale:
      return constant(kBigramScale);
    default:  // biases, the gates of skips and of smear, the bigram table
      return constant(0);
  }
}

}  // namespace thimble
