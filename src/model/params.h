// The table of all tensors of a model: name, shape, init, optimizer group, offset. Initialization,
// loading, saving, optimizers, packers and exporters all iterate over this table.
//
// Names: if every tensor of the model has a name in Transformers' llama family (llama, qwen2,
// qwen3), those names are used. Any other model uses the names of parameter-golf's state dict,
// extended in the same style: pos_emb.weight, emb_norm.weight, blocks.0.attn_norm.weight and .bias,
// blocks.0.attn.c_q.bias, blocks.0.attn.q_norm.weight, blocks.0.mlp.gate.weight and up.weight,
// final_norm.weight. The config alone determines the names; there is no key for it.
//
// Storage: one block of f32. The layers of one role have a constant stride (Muon processes them as
// a batch). q, k and v of a layer form one matrix, as do gate and up; their biases form one vector.
// Matrices and vectors start at multiples of 16 elements (64 bytes), except inside such a group.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace thimble {

// In storage order, with shapes (B = bigram_buckets, E = bigram_dim, S = skips).
enum class Role : std::uint8_t {
  token_embedding,     // [V, C]
  position_embedding,  // [context, C]
  head,                // [V, C], untied only
  bigram_embedding,    // [B, E]
  bigram_proj,         // [C, E]
  query,               // [H D, C]
  key,                 // [K D, C]   after query
  value,               // [K D, C]   after key
  attn_proj,           // [C, H D]
  mlp_fc,              // [F, C]     ungated MLPs
  mlp_gate,            // [F, C]     gated MLPs
  mlp_up,              // [F, C]     after gate
  mlp_proj,            // [C, F]
  query_bias,          // [H D]
  key_bias,            // [K D]      after query_bias
  value_bias,          // [K D]      after key_bias
  attn_proj_bias,      // [C]
  mlp_fc_bias,         // [F]
  mlp_gate_bias,       // [F]
  mlp_up_bias,         // [F]        after gate_bias
  mlp_proj_bias,       // [C]
  attn_norm,           // [C]
  attn_norm_bias,      // [C]
  mlp_norm,            // [C]
  mlp_norm_bias,       // [C]
  attn_post_norm,      // [C]
  mlp_post_norm,       // [C]
  query_norm,          // [D]
  key_norm,            // [D]
  q_gain,              // [H] or [1]
  attn_scale,          // [C]
  mlp_scale,           // [C]
  resid_mix,           // [2, C] or [2, 1]
  skip_weights,        // [S, C]
  skip_gates,          // [S, C]
  embed_norm,          // [C]
  embed_norm_bias,     // [C]
  final_norm,          // [C]
  final_norm_bias,     // [C]
  smear_gate,          // [C]
  bigram_scale,        // []
};
inline constexpr int kRoles = static_cast<int>(Role::bigram_scale) + 1;

// Matrices and vectors start at multiples of 16 elements, which are 64 bytes.
constexpr std::int64_t aligned(std::int64_t elements) {
  return (elements + 15) / 16 * 16;
}

struct Init {
  enum class Kind {
    constant,    // value
    normal,      // standard deviation `value`
    uniform,     // in [-value, value)
    orthogonal,  // orthonormal rows (wide) or columns (tall), times value
    first_row,   // the first row `value`, all others 0: resid_mix starts as the identity
  };
  Kind kind = Kind::constant;
  double value = 0;

  bool operator==(const Init&) const = default;
};

struct Param {
  std::string name;
  std::vector<std::int64_t> dims;  // shape in files: rank 0, 1 or 2
  std::int64_t rows, cols;         // shape in memory: a vector is [1, C]
  Role role;
  int layer;  // -1: not in a block
  Init init;
  ParamGroup group;
  bool decays;   // weight decay applies (not to norm weights and biases)
  bool control;  // packers keep it in f32
  std::int64_t offset;

  std::int64_t count() const { return rows * cols; }
  // This tensor's part of a block in table layout (weights, gradients or optimizer state).
  template <class T>
  std::span<T> in(std::span<T> block) const {
    return block.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(count()));
  }
};

// A tensor's position in the block. rows == 0: the model does not have it.
struct ParamView {
  std::int64_t offset = 0, rows = 0, cols = 0;

  explicit operator bool() const { return rows > 0; }
  std::int64_t count() const { return rows * cols; }
  bool operator==(const ParamView&) const = default;
};

class ParamTable {
 public:
  explicit ParamTable(const ModelConfig& config);  // resolved
  // A table of other parameters, laid out by their offsets. It has no views and no strides.
  explicit ParamTable(std::vector<Param> params);

  std::span<const Param> all() const { return params_; }  // by offset
  const Param* find(std::string_view name) const;         // nullptr: no such tensor

  std::int64_t count() const { return count_; }  // parameters
  std::int64_t count(ParamGroup group) const { return group_counts_[static_cast<std::size_t>(group)]; }
  std::int64_t block_size() const { return block_size_; }             // elements, including gaps
  std::int64_t stride(Role role) const { return slot(role).stride; }  // from one layer to the next

  ParamView view(Role role, int layer = 0) const;

  // Views for the forward pass. A group is one view, so it takes one GEMM.
  ParamView token_embedding() const { return view(Role::token_embedding); }
  ParamView position_embedding() const { return view(Role::position_embedding); }
  ParamView head() const;  // the token embedding if tied
  ParamView qkv(int layer) const { return joined({Role::query, Role::key, Role::value}, layer); }
  ParamView qkv_bias(int layer) const {
    return joined({Role::query_bias, Role::key_bias, Role::value_bias}, layer);
  }
  ParamView attn_proj(int layer) const { return view(Role::attn_proj, layer); }
  ParamView attn_proj_bias(int layer) const { return view(Role::attn_proj_bias, layer); }
  ParamView mlp_in(int layer) const;       // fc, or gate;up
  ParamView mlp_in_bias(int layer) const;  // of fc, or of gate;up
  ParamView mlp_proj(int layer) const { return view(Role::mlp_proj, layer); }
  ParamView mlp_proj_bias(int layer) const { return view(Role::mlp_proj_bias, layer); }
  ParamView attn_norm(int layer) const { return view(Role::attn_norm, layer); }
  ParamView attn_norm_bias(int layer) const { return view(Role::attn_norm_bias, layer); }
  ParamView mlp_norm(int layer) const { return view(Role::mlp_norm, layer); }
  ParamView mlp_norm_bias(int layer) const { return view(Role::mlp_norm_bias, layer); }
  ParamView attn_post_norm(int layer) const { return view(Role::attn_post_norm, layer); }
  ParamView mlp_post_norm(int layer) const { return view(Role::mlp_post_norm, layer); }
  ParamView query_norm(int layer) const { return view(Role::query_norm, layer); }
  ParamView key_norm(int layer) const { return view(Role::key_norm, layer); }
  ParamView q_gain(int layer) const { return view(Role::q_gain, layer); }
  ParamView attn_scale(int layer) const { return view(Role::attn_scale, layer); }
  ParamView mlp_scale(int layer) const { return view(Role::mlp_scale, layer); }
  ParamView resid_mix(int layer) const { return view(Role::resid_mix, layer); }
  ParamView skip_weight(int skip) const { return row_of(Role::skip_weights, skip); }
  ParamView skip_gate(int skip) const { return row_of(Role::skip_gates, skip); }
  ParamView embed_norm() const { return view(Role::embed_norm); }
  ParamView embed_norm_bias() const { return view(Role::embed_norm_bias); }
  ParamView final_norm() const { return view(Role::final_norm); }
  ParamView final_norm_bias() const { return view(Role::final_norm_bias); }
  ParamView smear_gate() const { return view(Role::smear_gate); }
  ParamView bigram_embedding() const { return view(Role::bigram_embedding); }
  ParamView bigram_proj() const { return view(Role::bigram_proj); }
  ParamView bigram_scale() const { return view(Role::bigram_scale); }

 private:
  struct Slot {
    std::int64_t offset = 0, rows = 0, cols = 0, stride = 0;
  };
  const Slot& slot(Role role) const { return slots_[static_cast<std::size_t>(role)]; }
  ParamView row_of(Role role, int row) const;
  ParamView joined(std::span<const Role> roles, int layer) const;
  ParamView joined(std::initializer_list<Role> roles, int layer) const {
    return joined(std::span(roles.begin(), roles.size()), layer);
  }
  void lay_out(const ModelConfig& config, std::span<const Role> group);

  std::vector<Param> params_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::array<Slot, kRoles> slots_{};
  std::array<std::int64_t, kParamGroups> group_counts_{};
  std::int64_t count_ = 0, block_size_ = 0;
};

// Whether the tensors have Transformers' names (see above).
bool uses_transformers_names(const ModelConfig& config);

// Fills the block (block_size() elements) with initial values; gaps become 0. A tensor's values
// depend only on its name, shape, init and the seed, not on other tensors or the number of threads.
void initialize(const ParamTable& table, std::uint64_t seed, std::span<float> block);

// The definition of a role: its names, optimizer group and flags.
struct RoleRow {
  Role role;
  std::string_view golf_name;          // {} is the layer
  std::string_view transformers_name;  // empty: no such tensor in the llama family
  ParamGroup group = ParamGroup::scalar;
  bool joined = false;  // stored directly after the previous role
  bool decays = true;
  bool control = true;

  bool in_block() const { return golf_name.find("{}") != golf_name.npos; }
};

std::span<const RoleRow> all_roles();  // in the order of the enum

// Shape in files; nullopt if the model does not have this tensor.
std::optional<std::vector<std::int64_t>> dims_of(const ModelConfig& config, Role role);

Init init_of(const ModelConfig& config, Role role, std::int64_t rows, std::int64_t cols);

// The order in which a token passes through the layers: 0, 1, 2, ... With the loop on, the looped
// layers are repeated loop_count times (parameter-golf's depth recurrence). Example: layers 4 to 5
// with loop_count 2 in 8 layers give 0 1 2 3 4 5 4 5 4 5 6 7.
//
// All passes of a layer share its weights and constants. Skips connect passes of the first half
// with passes of the second half, and the KV cache has separate memory for each pass.
std::vector<int> layer_order(const ModelConfig& config, bool loop_on);

// The angle per position of each pair of columns that RoPE rotates. local: in layers with a window.
std::vector<double> rope_frequencies(const ModelConfig& config, bool local);
// What longrope and yarn multiply rotated queries and keys with; 1 for other scalings.
double rope_attention_factor(const ModelConfig& config, bool local);

// Elements of the matrices a token is multiplied with, counting each pass of a looped layer,
// without the head.
std::int64_t multiplied_elements(const ModelConfig& config, const ParamTable& params, bool loop_on);

}  // namespace thimble
