// Conversion of a model to the tensors and keys that llama.cpp expects, by architecture, and back.
//
//   ExportedModel model = exported_model(file);  // weights under llama.cpp's names, in its order
//   write_gguf(ops, path, Existing::refuse, model, tokenizer_settings(...), GgufType::f16);
//
// This file handles the families of architectures.h. A window that llama.cpp does not have becomes
// a shorter context, and query_scalar is folded into q. fold.h builds ExportedModels with computed
// tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf.h"
#include "formats/model_file.h"
#include "model/params.h"

namespace thimble {

struct Architecture;

struct ExportedTensor {
  std::string name;                // "blk.0.attn_q.weight"
  std::vector<std::int64_t> dims;  // [rows, columns], or [size]; the last dim is contiguous
  std::vector<float> values;
  bool plain = false;  // always stored as F32, as vectors are
};

struct ExportedModel {
  std::string architecture;  // general.architecture: "llama"
  GgufSettings settings;     // "llama.context_length", ...: all keys except general.* and tokenizer.*
  std::vector<ExportedTensor> tensors;
  std::vector<std::string> folded = {};  // what was folded into weights, one line each
};

// The family as which llama.cpp can run this model, and its name there; nullptr and empty if none.
const Architecture* gguf_family(ModelConfig config);
std::string_view gguf_architecture(const ModelConfig& config);
std::string gguf_architectures();  // all names: "llama, qwen2, ..."

// Without the architecture's name.
std::string_view norm_eps_key(NormKind norm);
inline constexpr std::string_view kRopeDivisors = "rope_freqs.weight";
inline constexpr std::string_view kRopeShortFactors = "rope_factors_short.weight";  // of longrope
inline constexpr std::string_view kRopeLongFactors = "rope_factors_long.weight";

// Throws an Error if no architecture fits, or for nonzero tensors that the architecture does not
// have.
ExportedModel exported_model(const ModelFile& file);

// The keys shared by every architecture with RMS norms and RoPE (sizes, eps, RoPE), prefixed with
// the architecture's name.
GgufSettings common_settings(const std::string& architecture, const ModelConfig& config);

struct GgufReport {
  std::string architecture;
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;
  // Tensors whose rows do not fit the blocks of the type meant for them, one sentence for each pair
  // of types.
  std::vector<std::string> fallbacks = {};
};

// The type that llama.cpp's quantizer gives to a matrix, before rows that do not fit are considered
// (fitting_type). Q4_K and Q5_K stand for its mixes Q4_K_M and Q5_K_M: the head, and v and ffn_down
// of half of the layers, are Q6_K. `tied`: there is no output.weight.
GgufType mixed_type(GgufType type, std::string_view tensor, std::int64_t layers, bool tied);

// Writes the file: general.*, the model's keys, the tokenizer's keys (gguf_tokenizer.h) and the
// tensors. Matrices are stored as mixed_type().
GgufReport write_gguf(FileOps& ops, const std::filesystem::path& path, Existing existing,
                      const ExportedModel& model, const GgufSettings& tokenizer, GgufType type,
                      const Inspector& inspect = {}, const ProgressOutput& progress = {});

// RoPE in llama.cpp's `llama` rotates pairs of adjacent rows; in thimble, qwen, talkie and apertus
// it rotates the two halves of a head. Row 2i of a head in llama.cpp is row i here, 2i + 1 is i +
// head_dim / 2.
std::vector<float> neighbours_from_halves(std::span<const float> values, std::int64_t head_dim,
                                          std::int64_t columns);
std::vector<float> halves_from_neighbours(std::span<const float> values, std::int64_t head_dim,
                                          std::int64_t columns);

// llama.cpp's names for the tensors of llama, qwen2 and qwen3. architectures.h has those of the
// other families.
struct GgufName {
  Role role;
  std::string_view name;  // {} is replaced by the layer

  std::string of(int layer) const;
};

std::span<const GgufName> gguf_names();

// The name of one parameter. Throws an Error for tensors that these architectures do not have.
std::string gguf_name(const Param& param);

// True for tensors whose rows RoPE rotates.
bool is_rotated(Role role);

}  // namespace thimble
