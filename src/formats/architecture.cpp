#include "formats/architecture.h"

#include "model/params.h"

namespace thimble {

namespace {

// Switches that only golf has.
bool is_plain(const ModelConfig& c) {
  return c.q_gain == GainKind::none && !c.layer_scale && !c.exclusive_attention && !c.branch_scale &&
         c.residual_mix == MixKind::none && !c.unet_skips && c.parallel_from < 0 && c.loop_count == 0 &&
         c.bigram_buckets == 0 && !c.smear_gate && c.logit_softcap == 0;
}

bool is_llama_like(const ModelConfig& c) {
  return is_plain(c) && uses_transformers_names(c) && c.norm == NormKind::rms_weight && !c.embed_norm &&
         c.final_norm && c.position == PositionKind::rope && c.rope_dims == c.head_dim &&
         c.rope_direction == 1;
}

bool is_gpt2(const ModelConfig& c) {
  return is_plain(c) && c.norm == NormKind::layer && c.bias && !c.embed_norm && c.final_norm &&
         c.position == PositionKind::learned && c.mlp == ActivationKind::gelu && !c.qk_norm &&
         c.kv_heads == c.heads && c.q_width() == c.dim;
}

bool is_microgpt(const ModelConfig& c) {
  return is_plain(c) && c.norm == NormKind::rms && c.embed_norm && !c.final_norm &&
         c.position == PositionKind::learned && c.mlp == ActivationKind::relu && !c.qk_norm && !c.bias &&
         !c.qkv_bias && !c.tie_embeddings;
}

bool is_golf(const ModelConfig& c) {
  return c.norm == NormKind::rms && c.embed_norm && c.final_norm && c.position == PositionKind::rope &&
         c.qk_norm && c.q_gain != GainKind::none && c.branch_scale && c.residual_mix != MixKind::none &&
         !c.gated_mlp() && !c.bias && !c.qkv_bias;
}

}  // namespace

std::string_view architecture_of(const ModelConfig& config) {
  if (is_llama_like(config)) {
    // Biases of Transformers' llama and qwen3 come with the output projection's, qwen2's without.
    if (config.qkv_bias && !config.bias) return config.qk_norm ? "thimble" : "qwen2";
    return config.qk_norm ? "qwen3" : "llama";
  }
  if (is_gpt2(config)) return "gpt2";
  if (is_microgpt(config)) return "microgpt";
  if (is_golf(config)) return "golf";
  return "thimble";
}

}  // namespace thimble
