// A model on its way into a GGUF: what llama.cpp is told of it, by architecture, and what comes back.
//
//   ExportedModel model = exported_model(file);              // weights under llama.cpp's names, in its order
//   write_gguf(ops, path, Existing::refuse, model, tokenizer_settings(...), GgufType::f16);
//
// llama, qwen2 and qwen3 are made here: every tensor is one of ours, q and k of llama with their rows in llama.cpp's
// order. Other makers of an ExportedModel (fold.h) may compute theirs.
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

struct ExportedTensor {
  std::string name;                // "blk.0.attn_q.weight"
  std::vector<std::int64_t> dims;  // [rows, columns], or [size]: the last runs fastest
  std::vector<float> values;
  bool plain = false;  // stays F32 whatever the file's type; vectors do in any case
};

struct ExportedModel {
  std::string architecture;  // general.architecture: "llama"
  GgufSettings settings;  // "llama.context_length", ... : all keys that are neither general.* nor tokenizer.*
  std::vector<ExportedTensor> tensors;
  std::vector<std::string> folded = {};  // what was folded into weights, in words; empty: nothing was
};

// llama, qwen2 or qwen3: what llama.cpp reads this model as, tensor by tensor. Empty: none of them.
std::string_view gguf_architecture(ModelConfig config);

// Refuses what is none of them, and tensors that the architecture has no place for.
ExportedModel exported_model(const ModelFile& file);

// The keys that every architecture with RMS norms and RoPE has, with this name in front: sizes, eps, RoPE.
GgufSettings common_settings(const std::string& architecture, const ModelConfig& config);

struct GgufReport {
  std::string architecture;
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;
  std::vector<std::string> fallbacks = {};  // tensors whose rows do not fit the type's blocks: F16 instead
};

// The file: general.*, the model's own keys, those of the tokenizer (gguf_tokenizer.h), tensors. Matrices get `type`.
GgufReport write_gguf(FileOps& ops, const std::filesystem::path& path, Existing existing,
                      const ExportedModel& model, const GgufSettings& tokenizer, GgufType type,
                      const Inspector& inspect = {});

// llama.cpp rotates pairs of neighbours in `llama`, thimble (and qwen, talkie, apertus) the two halves of a head:
// row 2i of a head there is row i here, 2i + 1 is i + head_dim / 2.
std::vector<float> neighbours_from_halves(std::span<const float> values, std::int64_t head_dim,
                                          std::int64_t columns);
std::vector<float> halves_from_neighbours(std::span<const float> values, std::int64_t head_dim,
                                          std::int64_t columns);

// What llama.cpp calls the tensors of llama, qwen2 and qwen3.
struct GgufName {
  Role role;
  std::string_view name;  // {} is the layer

  std::string of(int layer) const;
};

std::span<const GgufName> gguf_names();

// The name of one of our tensors; an Error for what these architectures do not have.
std::string gguf_name(const Param& param);

// Are the rows of this tensor turned by RoPE?
bool is_turned(Role role);

}  // namespace thimble
