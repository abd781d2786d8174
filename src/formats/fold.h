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

// A model in the making: its config and its tensors in double precision, by role. Steps of a fold change both;
// at the end every value is rounded to f32, once.
class FoldWeights {
 public:
  using Values = std::vector<double>;

  explicit FoldWeights(const ModelFile& source);

  ModelConfig config;
  bool loop_on;  // of the source

  Values& at(Role role, int layer = -1);  // must be there
  void put(Role role, int layer, Values values) { tensors_[{role, layer}] = std::move(values); }
  Values take(Role role, int layer = -1);  // and it is gone

  int layers() const { return static_cast<int>(config.layers); }

  // Laid out for the config as it is now. A tensor too many, too few or of another size is an Error: a step forgot
  // something.
  std::vector<float> block() const;

 private:
  std::map<std::pair<Role, int>, Values> tensors_;
};

// Every value of it, or row r (of `columns` values) by factors[r].
void scale(FoldWeights::Values& values, double factor);
void scale_rows(FoldWeights::Values& matrix, std::span<const double> factors);

// The steps of a fold: each turns a model into another with the same logits, and adds a line to the report. A step
// whose switch is off does nothing.
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

// Folded models in a GGUF, there and back: the names llama.cpp has for their tensors, and the keys that are not those of
// every architecture.
//
//   apertus   xielu.alpha_p, .alpha_n, .beta, .eps    the constants at which xIELU is relu2
//   talkie    talkie.logit_scale                      1
//             blk.N.layer_output_scale                how much of the embedding layer N + 1 mixes in; 0 in the last
bool is_folded_architecture(std::string_view architecture);

ExportedModel exported_model(const FoldedModel& folded);

// The config of a folded model of these sizes: what an importer fills in and then reads the tensors of.
ModelConfig folded_config(std::string_view architecture, ModelConfig sizes);

// Where each tensor lies in the file.
struct FoldedTensor {
  std::string name;
  std::vector<std::int64_t> dims;
  Role role;
  int layer;
  bool output_scale = false;  // the second number of a resid_mix, whose first is 1
};
std::vector<FoldedTensor> folded_tensors(std::string_view architecture, const ModelConfig& config);

// Keys that a folded model has beside the common ones; an importer refuses every other value.
GgufSettings folded_settings(std::string_view architecture);

}  // namespace thimble
