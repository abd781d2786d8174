// What llama.cpp's architectures cannot express, and which of them can express a model.
#include <algorithm>

#include "base/error.h"
#include "base/joined.h"
#include "formats/fold.h"
#include "formats/problems.h"

namespace thimble {

namespace {

// Of the two architectures alike: both are RMS-normed, have norms over q and k, RoPE over whole heads, no biases.
std::vector<std::string> reasons_of_both(const ModelConfig& c, bool drop_softcap) {
  std::vector<std::string> reasons;
  const auto refuse = [&](bool wrong, std::string reason) {
    if (wrong) reasons.push_back(std::move(reason));
  };
  refuse(c.unet_skips, "unet_skips: no architecture adds an early layer to a late one");
  refuse(c.parallel_from >= 0,
         "parallel_from: attention always comes before the MLP, which reads what it added");
  refuse(c.residual_mix == MixKind::channel,
         "residual_mix = channel: it turns the stream before the norm (scalar folds)");
  refuse(c.logit_softcap > 0 && !drop_softcap,
         fmt::format("logit_softcap = {}: no architecture without post-norms has one", c.logit_softcap));
  refuse(c.bigram_buckets > 0, "bigram_buckets: there are no bigram embeddings");
  refuse(c.smear_gate, "smear_gate: there is no gate to the token before");
  refuse(c.exclusive_attention, "exclusive_attention: attention's result is used as it is");
  refuse(c.norm == NormKind::layer, "norm = layer: norms are RMS norms");
  refuse(!c.final_norm, "final_norm = false: the head always reads a norm");
  refuse(!c.qk_norm, "qk_norm = false: q and k always pass a norm");
  refuse(c.position != PositionKind::rope, "position: only rope is there");
  refuse(c.position == PositionKind::rope && c.rope_dims != c.head_dim,
         fmt::format("rope_dims = {}: whole heads are turned (head_dim = {})", c.rope_dims, c.head_dim));
  refuse(c.bias || c.qkv_bias, "bias, qkv_bias: projections have none");
  refuse(c.mlp == ActivationKind::relu || c.mlp == ActivationKind::gelu,
         "mlp: only relu2, leaky_relu2 and swiglu can be expressed");
  return reasons;
}

std::vector<std::string> reasons_of_apertus(const ModelConfig& c) {
  std::vector<std::string> reasons;
  if (c.q_gain == GainKind::head) reasons.push_back("q_gain = head: all heads of a layer share a gain");
  if (c.residual_mix == MixKind::scalar)
    reasons.push_back("residual_mix = scalar: the embedding is not mixed in again");
  if (c.mlp == ActivationKind::swiglu) reasons.push_back("mlp = swiglu: the MLP has no gate");
  return reasons;
}

std::vector<std::string> reasons_of_talkie(const ModelConfig& c) {
  std::vector<std::string> reasons;
  if (c.norm == NormKind::rms_weight)
    reasons.push_back("norm = rms_weight: the norms of q and k have no weight");
  if (!c.embed_norm) reasons.push_back("embed_norm = false: the embedding always passes a norm");
  return reasons;
}

Hint hint_for(const ModelConfig& config, const FoldOptions& options) {
  const char* cap = config.logit_softcap > 0 && !options.drop_softcap
                        ? "; --drop-softcap leaves the softcap out: greedy text stays, probabilities change"
                        : "";
  return Hint{fmt::format("train with --preset export, which has only what llama.cpp can express{}", cap)};
}

}  // namespace

std::vector<std::string> reasons_against(std::string_view architecture, const ModelConfig& config,
                                         bool drop_softcap) {
  check(architecture == kApertus || architecture == kTalkie, "[fold] expected apertus or talkie, found '{}'",
        architecture);
  std::vector<std::string> reasons = reasons_of_both(config, drop_softcap);
  for (std::string& reason :
       architecture == kApertus ? reasons_of_apertus(config) : reasons_of_talkie(config))
    reasons.push_back(std::move(reason));
  return reasons;
}

std::string folded_architecture(const ModelConfig& config, const FoldOptions& options) {
  if (!options.architecture.empty()) {
    const auto reasons = reasons_against(options.architecture, config, options.drop_softcap);
    check(reasons.empty(), hint_for(config, options), "llama.cpp's {} cannot express this model: {}",
          options.architecture, listed(reasons));
    return options.architecture;
  }
  for (const std::string_view architecture : {kApertus, kTalkie})
    if (reasons_against(architecture, config, options.drop_softcap).empty()) return std::string(architecture);
  std::vector<std::string> reasons = reasons_of_both(config, options.drop_softcap);
  if (const auto own = reasons_of_apertus(config); !own.empty())
    reasons.push_back(fmt::format("as apertus: {}", joined(own, ", ")));
  if (const auto own = reasons_of_talkie(config); !own.empty())
    reasons.push_back(fmt::format("as talkie: {}", joined(own, ", ")));
  fail(hint_for(config, options), "no architecture of llama.cpp can express this model: {}", listed(reasons));
}

}  // namespace thimble
