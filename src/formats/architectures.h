// The model families of Transformers and llama.cpp that thimble reads and writes: one row each.
//
// A row lists what all models of a family have in common, the keys of its config.json, the layers
// that may have a window, and the tensors that have other names than llama's. Reading, writing and
// the question of whether a model belongs to a family all use the rows; no code asks for a family
// by name.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "config/config.h"
#include "model/params.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// A parameter whose tensor has another name than llama's. Parameters with the same name are parts
// of one tensor, one below the other in the order of the table of parameters. {} is the layer.
struct FamilyTensor {
  Role role;
  std::string_view transformers, gguf;
};

// A key of config.json whose value is a member of ModelConfig. If an optional key is absent, the
// member has its value in Architecture::switches.
struct FamilyKey {
  std::string_view name;
  std::variant<std::int64_t ModelConfig::*, double ModelConfig::*, bool ModelConfig::*> member;
  bool required = false;
  bool whole = false;  // Transformers rejects 256.0
};

// A key of config.json that must have one of these values (JSON). The first is the default, and the
// one that is written.
struct FamilyConstant {
  std::string_view name;
  std::string_view values;  // "[\"silu\", \"swish\"]"
};

// The layers that a family can give a window to.
enum class WindowLayers : std::uint8_t {
  none,
  all,   // sliding_window
  last,  // from max_window_layers on, if use_sliding_window is set
  any,   // layer_types
};

// llama's config.json has attention_bias and mlp_bias, others the first or none.
enum class BiasKeys : std::uint8_t { none, attention, both };

struct Architecture {
  std::string_view name;        // in thimble: "gemma3"
  std::string_view model_type;  // in config.json: "gemma3_text"
  std::string_view class_name;  // "Gemma3ForCausalLM"
  std::string_view gguf;        // llama.cpp's: "gemma3"
  ModelConfig switches;
  std::span<const FamilyKey> keys;
  std::span<const FamilyConstant> constants = {};
  std::span<const std::string_view> ignored = {};  // keys without effect that only these files have
  std::span<const FamilyTensor> tensors = {};
  WindowLayers windows = WindowLayers::none;
  std::int64_t period = 0;  // of global layers, if config.json does not list the layers
  BiasKeys biases = BiasKeys::none;
  bool partial_rope = false;           // rope_dims may be less than head_dim
  bool skips_rope = false;             // nope_every
  double gain_base = 0;                // Transformers stores the weights of norms minus this
  bool transposed = false;             // Transformers stores linear layers as [in, out]
  bool neighbours = false;             // llama.cpp rotates pairs of adjacent rows
  std::int64_t gguf_period = 0;        // llama.cpp's default for the key of `period`
  std::int64_t gguf_nope_every = 0;    // llama.cpp's constant
  std::int64_t gguf_scale_layers = 0;  // llama.cpp: query_scalar is dim / heads with so many layers
};

std::span<const Architecture> all_architectures();

// The family that has all of the model's switches, nullptr if none has. `preferred` is taken if it
// fits: a mistral without a window is also a llama.
const Architecture* family_of(const ModelConfig& config, std::string_view preferred = {});

// The switches of the model that the family does not have: "unet_skips = true".
std::vector<std::string> reasons_against(const Architecture& family, const ModelConfig& config);
// Those of the family with the fewest.
std::vector<std::string> reasons_against_families(const ModelConfig& config);

// A tensor in a family's files, made of one or several parameters.
struct FileTensor {
  std::string name;
  std::vector<std::int64_t> dims;
  std::vector<const Param*> parts;
  bool transposed = false;
  float base = 0;  // the file has the values minus this

  std::vector<float> values(std::span<const float> weights) const;  // in the layout of the file
};

enum class Naming : std::uint8_t { transformers, gguf };

// `params` must outlive the result.
std::vector<FileTensor> file_tensors(const Architecture& family, const ParamTable& params, Naming naming);

// The contents of config.json.
//
//   RoPE  Transformers 4: "rope_theta", "rope_scaling"
//         Transformers 5: "rope_parameters": {"rope_theta", "rope_type", ...}; gemma 3 has one for
//         each kind of layer
//
// Every key is either used, known to be harmless, or rejected by name: a model that runs but
// computes something else is worse than an error. A null key counts as absent.
struct HuggingFaceConfig {
  const Architecture* family;
  ModelConfig model;    // resolved
  SpecialIds special;   // bos and eos
  bool attention_bias;  // model.bias is set if either is; absent biases are read as 0
  bool mlp_bias;
};

// Error messages begin with `name`. One Error lists all unsupported settings.
HuggingFaceConfig parse_hugging_face_config(std::string_view json, std::string_view name);

// The keys of config.json that describe the model. `config` must belong to the family.
Json hugging_face_config(const Architecture& family, const ModelConfig& config);

// The context that other programs may use: of longrope, also the one after the scaling. Throws if
// the model itself uses that one, because those programs then compute short texts otherwise.
std::int64_t scaled_context(const ModelConfig& config);

// llama.cpp's divisors of RoPE's frequencies (the tensor rope_freqs.weight), and the settings of
// rope_scaling = llama3 that give them; nullopt if none do.
std::vector<float> rope_divisors(const ModelConfig& config);
bool set_rope_divisors(ModelConfig& config, std::span<const float> divisors);

// Sets window_from and global_every; false if they cannot express these layers.
bool set_window_layers(ModelConfig& config, const std::vector<bool>& local);

}  // namespace thimble
