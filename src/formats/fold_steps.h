// The steps of a fold: each turns a model into another with the same logits, and adds a line to the report. A step
// whose switch is off does nothing.
#pragma once

#include <vector>

#include "formats/fold.h"
#include "formats/fold_weights.h"

namespace thimble {

using FoldReport = std::vector<FoldStep>;

// Steps for both architectures.
void drop_softcap(FoldWeights& model, FoldReport& report);         // the only one that changes logits
void fold_branch_scale(FoldWeights& model, FoldReport& report);    // -> off
void fold_rope_direction(FoldWeights& model, FoldReport& report);  // -> 1
void fold_layer_scale(FoldWeights& model, FoldReport& report);     // -> off
void unroll_loop(FoldWeights& model, FoldReport& report);        // -> off, layers written once for each pass
void widen_leaky_relu2(FoldWeights& model, FoldReport& report);  // -> relu2, mlp_hidden doubled
void untie_head(FoldWeights& model, FoldReport& report);         // -> tie_embeddings off

// apertus. Expects the head untied.
void fold_embed_norm(FoldWeights& model, FoldReport& report);     // -> off
void write_norm_weights(FoldWeights& model, FoldReport& report);  // -> norm = rms_weight
void fold_shared_gain(FoldWeights& model, FoldReport& report);    // -> q_gain = none; expects rms_weight

// talkie. Expects norm = rms and the head untied.
void fold_scalar_mix(FoldWeights& model, FoldReport& report);  // -> scalar with (1, s), (1, 0) in layer 0
void spread_gain(FoldWeights& model, FoldReport& report);      // -> q_gain = head
void double_gate(FoldWeights& model, FoldReport& report);      // relu2 -> swiglu

}  // namespace thimble
