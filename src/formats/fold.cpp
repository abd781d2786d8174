#include "formats/fold.h"

#include <fmt/format.h>

#include "formats/architecture.h"
#include "formats/fold_steps.h"

namespace thimble {

namespace {

void fold_to_apertus(FoldWeights& model, FoldReport& report) {
  fold_embed_norm(model, report);
  write_norm_weights(model, report);
  fold_shared_gain(model, report);
  report.push_back({"mlp = relu2", "xIELU with alpha_p = ln(e - 1), alpha_n = -100, beta = 0",
                    "within 1.8e-7 of each value"});
}

void fold_to_talkie(FoldWeights& model, FoldReport& report) {
  fold_scalar_mix(model, report);
  spread_gain(model, report);
  double_gate(model, report);
}

void put_back(const FoldWeights& weights, FoldedModel& folded) {
  folded.model.weights = weights.block();
  folded.model.config.model = weights.config;
  folded.model.architecture = folded.architecture;
}

}  // namespace

std::string FoldStep::line() const {
  return fmt::format("{} -> {}: {}", what, where, accuracy);
}

FoldStep softcap_dropped(double cap) {
  return {fmt::format("logit_softcap = {}", cap), "dropped",
          "greedy text is unchanged, probabilities are not: large logits are no longer held back"};
}

FoldedModel fold_model(const ModelFile& source, const FoldOptions& options) {
  FoldedModel folded{folded_architecture(source.config.model, options), source, {}};
  FoldWeights model(source);
  if (options.drop_softcap) drop_softcap(model, folded.steps);
  fold_branch_scale(model, folded.steps);
  fold_rope_direction(model, folded.steps);
  fold_layer_scale(model, folded.steps);
  unroll_loop(model, folded.steps);
  widen_leaky_relu2(model, folded.steps);
  untie_head(model, folded.steps);
  if (folded.architecture == kApertus)
    fold_to_apertus(model, folded.steps);
  else
    fold_to_talkie(model, folded.steps);
  put_back(model, folded);
  return folded;
}

FoldedModel unrolled_model(const ModelFile& source) {
  FoldedModel unrolled{source.architecture, source, {}};
  if (source.config.model.loop_count == 0) return unrolled;
  FoldWeights model(source);
  unroll_loop(model, unrolled.steps);
  unrolled.architecture = architecture_of(model.config);
  put_back(model, unrolled);
  return unrolled;
}

}  // namespace thimble
