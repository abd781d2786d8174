#include "formats/fold_gguf.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace thimble {

namespace {

struct NamedRole {
  Role role;
  std::string_view name;
};
using enum Role;

constexpr NamedRole kApertusRoles[] = {
    {token_embedding, "token_embd.weight"},
    {final_norm, "output_norm.weight"},
    {head, "output.weight"},
    {attn_norm, "blk.{}.attn_norm.weight"},
    {query, "blk.{}.attn_q.weight"},
    {key, "blk.{}.attn_k.weight"},
    {value, "blk.{}.attn_v.weight"},
    {query_norm, "blk.{}.attn_q_norm.weight"},
    {key_norm, "blk.{}.attn_k_norm.weight"},
    {attn_proj, "blk.{}.attn_output.weight"},
    {mlp_norm, "blk.{}.ffn_norm.weight"},
    {mlp_fc, "blk.{}.ffn_up.weight"},
    {mlp_proj, "blk.{}.ffn_down.weight"},
};

constexpr NamedRole kTalkieRoles[] = {
    {token_embedding, "token_embd.weight"},
    {head, "output.weight"},
    {query, "blk.{}.attn_q.weight"},
    {key, "blk.{}.attn_k.weight"},
    {value, "blk.{}.attn_v.weight"},
    {q_gain, "blk.{}.attn_q_norm.weight"},
    {attn_proj, "blk.{}.attn_output.weight"},
    {mlp_gate, "blk.{}.ffn_gate.weight"},
    {mlp_up, "blk.{}.ffn_up.weight"},
    {mlp_proj, "blk.{}.ffn_down.weight"},
    {resid_mix, "blk.{}.layer_output_scale.weight"},
};

std::span<const NamedRole> roles_of(std::string_view architecture) {
  check(is_folded_architecture(architecture), "[fold] expected apertus or talkie, found '{}'", architecture);
  return architecture == kApertus ? std::span<const NamedRole>(kApertusRoles) : kTalkieRoles;
}

std::vector<float> values_of(const FoldedModel& folded, const ParamTable& table, const FoldedTensor& tensor) {
  // The last layer has no successor to mix for.
  if (tensor.output_scale && tensor.layer == folded.model.config.model.layers) return {0};
  const ParamView view = table.view(tensor.role, std::max(tensor.layer, 0));
  const auto first = folded.model.weights.begin() + view.offset;
  if (tensor.output_scale) return {first[1]};
  return std::vector<float>(first, first + view.count());
}

}  // namespace

bool is_folded_architecture(std::string_view architecture) {
  return architecture == kApertus || architecture == kTalkie;
}

ModelConfig folded_config(std::string_view architecture, ModelConfig sizes) {
  const bool apertus = architecture == kApertus;
  sizes.norm = apertus ? NormKind::rms_weight : NormKind::rms;
  sizes.mlp = apertus ? ActivationKind::relu2 : ActivationKind::swiglu;
  sizes.embed_norm = !apertus;
  sizes.q_gain = apertus ? GainKind::none : GainKind::head;
  sizes.residual_mix = apertus ? MixKind::none : MixKind::scalar;
  sizes.qk_norm = true;
  sizes.tie_embeddings = false;
  return resolved(sizes);
}

std::vector<FoldedTensor> folded_tensors(std::string_view architecture, const ModelConfig& config) {
  const ParamTable table(config);
  std::vector<FoldedTensor> tensors;
  for (const NamedRole& named : roles_of(architecture)) {
    const bool scale = named.role == resid_mix;
    for (const Param& param : table.all()) {
      if (param.role != named.role) continue;
      std::vector<std::int64_t> dims = param.dims;         // not its rows: a matrix may have one, too
      if (named.role == q_gain) dims = {config.heads, 1};  // a row of one number for each head
      if (scale) dims = {1};
      tensors.push_back({.name = fmt::format(fmt::runtime(named.name), param.layer),
                         .dims = std::move(dims),
                         .role = named.role,
                         .layer = param.layer + (scale ? 1 : 0),
                         .output_scale = scale});
    }
  }
  return tensors;
}

GgufSettings folded_settings(std::string_view architecture) {
  if (architecture == kTalkie) return {{"talkie.logit_scale", 1.0f}};
  // softplus(alpha_p) = 1, softplus(alpha_n) = 0 and beta = 0 leave x^2 where x > 0, and 0 elsewhere.
  return {{"xielu.alpha_p", 0.5413248546f},
          {"xielu.alpha_n", -100.0f},
          {"xielu.beta", 0.0f},
          {"xielu.eps", -1e-6f}};
}

ExportedModel exported_model(const FoldedModel& folded) {
  const ModelConfig& config = folded.model.config.model;
  const ParamTable table(config);
  ExportedModel model{folded.architecture, common_settings(folded.architecture, config), {}, {}};
  for (auto& setting : folded_settings(folded.architecture)) model.settings.push_back(std::move(setting));
  for (const FoldedTensor& tensor : folded_tensors(folded.architecture, config))
    model.tensors.push_back({.name = tensor.name,
                             .dims = tensor.dims,
                             .values = values_of(folded, table, tensor),
                             .plain = tensor.role == q_gain || tensor.output_scale});
  for (const FoldStep& step : folded.steps) model.folded.push_back(step.line());
  return model;
}

}  // namespace thimble
