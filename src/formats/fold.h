// Golf models in stock llama.cpp: as its architecture `apertus` or `talkie`.
//
// Neither has branch scales, turns by -theta or golf's residual mix. A fold moves each such switch into the
// weights beside it, in double precision, until the model is one of ours that the architecture computes tensor
// by tensor:
//
//   apertus   norm = rms_weight   qk_norm   mlp = relu2    untied; no gain, no mix, no embedding norm
//   talkie    norm = rms          qk_norm   mlp = swiglu   untied; embed_norm, q_gain = head,
//                                                          residual_mix = scalar with (1, s), (1, 0) in layer 0
//
// So a folded model runs here too, and a file that llama.cpp reads can be read back and compared. What cannot be
// folded is refused, all of it at once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/model_file.h"

namespace thimble {

inline constexpr std::string_view kApertus = "apertus", kTalkie = "talkie";

struct FoldOptions {
  std::string architecture = {};  // empty: apertus where it can be, because it is exact, else talkie
  bool drop_softcap = false;
};

// One line of the report: what became of a switch, where it went, and what that changes.
struct FoldStep {
  std::string what;      // "branch_scale"
  std::string where;     // "rows of attn.proj and mlp.proj"
  std::string accuracy;  // "exact", or what it changes and by how much

  std::string line() const;  // "branch_scale -> rows of attn.proj and mlp.proj: exact"
};

FoldStep softcap_dropped(double cap);

struct FoldedModel {
  std::string architecture;
  ModelFile model;  // config and weights folded, the rest as it was
  std::vector<FoldStep> steps;
};

// Everything about the config that keeps it out of the architecture, a sentence each; empty: it can be folded.
std::vector<std::string> reasons_against(std::string_view architecture, const ModelConfig& config,
                                         bool drop_softcap);

// "apertus" or "talkie"; an Error with all reasons if it is neither, or not the one that was asked for. Follows
// from the config alone: training longer does not change it.
std::string folded_architecture(const ModelConfig& config, const FoldOptions& options);

// Has the logits of the source, of a model whose softcap was dropped those before the cap.
FoldedModel fold_model(const ModelFile& source, const FoldOptions& options);

// A model without a loop that has the logits of one with: a layer for each pass.
FoldedModel unrolled_model(const ModelFile& source);

}  // namespace thimble
