// Export of golf models to unmodified llama.cpp, as its architecture `apertus` or `talkie`.
//
// Neither architecture has branch scales, rotation by -theta or golf's residual mix. A fold moves
// each such switch into the neighboring weights, in double precision, until the result is a thimble
// model that the architecture can represent tensor by tensor:
//
//   apertus   norm = rms_weight, qk_norm, mlp = relu2, untied; no gain, no mix, no embedding norm
//   talkie    norm = rms, qk_norm, mlp = swiglu, untied; embed_norm, q_gain = head,
//             residual_mix = scalar with (1, s), (1, 0) in layer 0
//
// A folded model therefore also runs in thimble, and an exported file can be read back and
// compared. If a model cannot be folded, the error lists all reasons.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/gguf_model.h"
#include "formats/model_file.h"
#include "model/params.h"

namespace thimble {

inline constexpr std::string_view kApertus = "apertus", kTalkie = "talkie";

struct FoldOptions {
  std::string architecture = {};  // empty: apertus if possible, because it is exact, else talkie
  bool drop_softcap = false;
};

// One line of the report: which switch was folded, into what, and the effect on accuracy.
struct FoldStep {
  std::string what;      // "branch_scale"
  std::string where;     // "rows of attn.proj and mlp.proj"
  std::string accuracy;  // "exact", or what it changes and by how much

  std::string line() const;  // "branch_scale -> rows of attn.proj and mlp.proj: exact"
};

FoldStep softcap_dropped(double cap);

struct FoldedModel {
  std::string architecture;
  ModelFile model;  // folded config and weights, all other fields copied
  std::vector<FoldStep> steps;
};

// The properties of the config that the architecture cannot express, one sentence each; empty if
// the model can be folded.
std::vector<std::string> reasons_against(std::string_view architecture, const ModelConfig& config,
                                         bool drop_softcap);

// Returns "apertus" or "talkie". Throws an Error with all reasons if neither fits, or if the
// requested one does not. The result depends only on the config, not on the weights.
std::string folded_architecture(const ModelConfig& config, const FoldOptions& options);

// The result has the same logits as the source; with drop_softcap, the logits before the cap.
FoldedModel fold_model(const ModelFile& source, const FoldOptions& options);

// Replaces a layer loop by one layer per pass. The logits are unchanged.
FoldedModel unrolled_model(const ModelFile& source);

// The model while it is being folded: config, and tensors by role in double precision. The steps of
// a fold change both. At the end, every value is rounded to f32 once.
class FoldWeights {
 public:
  using Values = std::vector<double>;

  explicit FoldWeights(const ModelFile& source);

  ModelConfig config;
  bool loop_on;  // in the source

  Values& at(Role role, int layer = -1);  // must exist
  void put(Role role, int layer, Values values) { tensors_[{role, layer}] = std::move(values); }
  Values take(Role role, int layer = -1);  // removes it

  int layers() const { return static_cast<int>(config.layers); }

  // Lays out the weights for the current config. Throws an Error if a tensor is missing, left over
  // or has the wrong size, which means that a step is incomplete.
  std::vector<float> block() const;

 private:
  std::map<std::pair<Role, int>, Values> tensors_;
};

// scale: multiplies every value. scale_rows: multiplies row r by factors[r].
void scale(FoldWeights::Values& values, double factor);
void scale_rows(FoldWeights::Values& matrix, std::span<const double> factors);

// The steps of a fold. Each converts the model to one with the same logits and adds a line to the
// report. A step does nothing if its switch is off.
using FoldReport = std::vector<FoldStep>;

// Steps for both architectures.
void drop_softcap(FoldWeights& model, FoldReport& report);         // the only one that changes logits
void fold_branch_scale(FoldWeights& model, FoldReport& report);    // -> off
void fold_rope_direction(FoldWeights& model, FoldReport& report);  // -> 1
void fold_layer_scale(FoldWeights& model, FoldReport& report);     // -> off
void unroll_loop(FoldWeights& model, FoldReport& report);          // -> off, one layer per pass
void widen_leaky_relu2(FoldWeights& model, FoldReport& report);    // -> relu2, mlp_hidden doubled
void untie_head(FoldWeights& model, FoldReport& report);           // -> tie_embeddings off

// apertus. Expects the head untied.
void fold_embed_norm(FoldWeights& model, FoldReport& report);     // -> off
void write_norm_weights(FoldWeights& model, FoldReport& report);  // -> norm = rms_weight
void fold_shared_gain(FoldWeights& model, FoldReport& report);    // -> q_gain = none; expects rms_weight

// talkie. Expects norm = rms and the head untied.
void fold_scalar_mix(FoldWeights& model, FoldReport& report);  // -> scalar with (1, s), (1, 0) in layer 0
void spread_gain(FoldWeights& model, FoldReport& report);      // -> q_gain = head
void double_gate(FoldWeights& model, FoldReport& report);      // relu2 -> swiglu

// Folded models in a GGUF, for export and import: llama.cpp's names of their tensors, and the keys
// that only these architectures have.
//
//   apertus   xielu.alpha_p, .alpha_n, .beta, .eps    the constants at which xIELU is relu2
//   talkie    talkie.logit_scale                      1
//             blk.N.layer_output_scale                share of the embedding that layer N + 1
//                                                     mixes in; 0 in the last layer
bool is_folded_architecture(std::string_view architecture);

ExportedModel exported_model(const FoldedModel& folded);

// The config of a folded model with these sizes. An importer fills in the sizes and then reads the
// tensors that folded_tensors() lists for it.
ModelConfig folded_config(std::string_view architecture, ModelConfig sizes);

// The name and dims of each tensor in the file.
struct FoldedTensor {
  std::string name;
  std::vector<std::int64_t> dims;
  Role role;
  int layer;
  bool output_scale = false;  // the second number of a resid_mix; the first is 1
};
std::vector<FoldedTensor> folded_tensors(std::string_view architecture, const ModelConfig& config);

// Keys that a folded model has in addition to the common ones. An importer rejects any other value.
GgufSettings folded_settings(std::string_view architecture);

}  // namespace thimble
