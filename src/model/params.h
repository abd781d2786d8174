// Every tensor of a model, enumerated once: name, shape, init, optimizer group, place. Init, loading,
// saving, optimizers, packers and exporters all walk this table.
//
// Names. A model all of whose tensors have a name in Transformers' llama family (llama, qwen2, qwen3) uses
// those names; any other uses the names of the published golf state dict, extended in the same manner:
// pos_emb.weight, emb_norm.weight, blocks.0.attn_norm.weight and .bias, blocks.0.attn.c_q.bias,
// blocks.0.attn.q_norm.weight, blocks.0.mlp.gate.weight and up.weight, final_norm.weight. So the family
// follows from the config and needs no key.
//
// Storage: one block of f32. All layers of one role lie at a constant stride (Muon takes them as a batch);
// q, k, v of a layer are the rows of one matrix, gate and up too, and so are their biases. Matrices and
// vectors start at multiples of 16 elements, 64 bytes, except inside such a group.
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

// In the order of storage. The comment gives the shape in letters (B = bigram_buckets, E = bigram_dim,
// S = skips).
enum class Role : std::uint8_t {
  token_embedding,     // [V, C]
  position_embedding,  // [context, C]
  head,                // [V, C], untied only
  bigram_embedding,    // [B, E]
  bigram_proj,         // [C, E]
  query,               // [H D, C]
  key,                 // [K D, C]   behind query
  value,               // [K D, C]   behind key
  attn_proj,           // [C, H D]
  mlp_fc,              // [F, C]     ungated MLPs
  mlp_gate,            // [F, C]     swiglu
  mlp_up,              // [F, C]     behind gate
  mlp_proj,            // [C, F]
  query_bias,          // [H D]
  key_bias,            // [K D]      behind query_bias
  value_bias,          // [K D]      behind key_bias
  attn_proj_bias,      // [C]
  mlp_fc_bias,         // [F]
  mlp_gate_bias,       // [F]
  mlp_up_bias,         // [F]        behind gate_bias
  mlp_proj_bias,       // [C]
  attn_norm,           // [C]
  attn_norm_bias,      // [C]
  mlp_norm,            // [C]
  mlp_norm_bias,       // [C]
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

struct Init {
  enum class Kind {
    constant,    // value
    normal,      // standard deviation `value`
    uniform,     // in [-value, value)
    orthogonal,  // orthonormal rows (wide) or columns (tall), times value
    first_row,   // the first row 1, the rest 0: resid_mix starts as "keep the stream"
  };
  Kind kind = Kind::constant;
  double value = 0;

  bool operator==(const Init&) const = default;
};

struct Param {
  std::string name;
  std::vector<std::int64_t> dims;  // in files: rank 0, 1 or 2
  std::int64_t rows, cols;         // in the engine: a vector is [1, C]
  Role role;
  int layer;  // -1: not in a block
  Init init;
  ParamGroup group;
  bool decays;   // weight decay applies: not to norm weights and biases
  bool control;  // a control tensor: packers keep it in f32
  std::int64_t offset;

  std::int64_t count() const { return rows * cols; }
  // Its part of a block that is laid out as the table says: of weights, gradients, moments.
  template <class T>
  std::span<T> in(std::span<T> block) const {
    return block.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(count()));
  }
};

// Where a tensor lies in the block. No rows: the model does not have it.
struct ParamView {
  std::int64_t offset = 0, rows = 0, cols = 0;

  explicit operator bool() const { return rows > 0; }
  std::int64_t count() const { return rows * cols; }
  bool operator==(const ParamView&) const = default;
};

class ParamTable {
 public:
  explicit ParamTable(const ModelConfig& config);  // resolved

  std::span<const Param> all() const { return params_; }  // by offset
  const Param* find(std::string_view name) const;         // nullptr: no such tensor

  std::int64_t count() const { return count_; }  // parameters
  std::int64_t count(ParamGroup group) const { return group_counts_[static_cast<std::size_t>(group)]; }
  std::int64_t block_size() const { return block_size_; }             // elements, gaps included
  std::int64_t stride(Role role) const { return slot(role).stride; }  // from one layer to the next

  ParamView view(Role role, int layer = 0) const;

  // What the forward pass asks for. Groups are one view: one GEMM.
  ParamView token_embedding() const { return view(Role::token_embedding); }
  ParamView position_embedding() const { return view(Role::position_embedding); }
  ParamView head() const;  // the embedding when tied
  ParamView qkv(int layer) const { return joined({Role::query, Role::key, Role::value}, layer); }
  ParamView qkv_bias(int layer) const {
    return joined({Role::query_bias, Role::key_bias, Role::value_bias}, layer);
  }
  ParamView attn_proj(int layer) const { return view(Role::attn_proj, layer); }
  ParamView attn_proj_bias(int layer) const { return view(Role::attn_proj_bias, layer); }
  ParamView mlp_in(int layer) const;       // fc, or gate;up
  ParamView mlp_in_bias(int layer) const;  // the same
  ParamView mlp_proj(int layer) const { return view(Role::mlp_proj, layer); }
  ParamView mlp_proj_bias(int layer) const { return view(Role::mlp_proj_bias, layer); }
  ParamView attn_norm(int layer) const { return view(Role::attn_norm, layer); }
  ParamView attn_norm_bias(int layer) const { return view(Role::attn_norm_bias, layer); }
  ParamView mlp_norm(int layer) const { return view(Role::mlp_norm, layer); }
  ParamView mlp_norm_bias(int layer) const { return view(Role::mlp_norm_bias, layer); }
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

// Do the tensors carry Transformers' names (see above)?
bool uses_transformers_names(const ModelConfig& config);

// Fills the block (block_size() elements) with starting values; gaps become 0. What a tensor gets depends on
// its name and the seed alone: not on the order, on other tensors or on the number of threads.
void initialise(const ParamTable& table, std::uint64_t seed, std::span<float> block);

// What the params table knows about each role: its names, its group, its shape and its init.
struct RoleRow {
  Role role;
  std::string_view golf_name;          // {} is the layer
  std::string_view transformers_name;  // empty: no such tensor in the llama family
  ParamGroup group = ParamGroup::scalar;
  bool joined = false;  // stored right behind the role before it
  bool decays = true;
  bool control = true;

  bool in_block() const { return golf_name.find("{}") != golf_name.npos; }
};

std::span<const RoleRow> all_roles();  // in the order of the enum

// Dimensions in files; nullopt: the model does not have it.
std::optional<std::vector<std::int64_t>> dims_of(const ModelConfig& config, Role role);

Init init_of(const ModelConfig& config, Role role, std::int64_t rows, std::int64_t cols);

// The layers in the order in which a token passes them: 0, 1, 2, ... and, where a loop is on, its layers once more each
// time before it goes on (parameter-golf 2.17). Loops of 4 to 5, twice, in 8 layers: 0 1 2 3 4 5 4 5 4 5 6 7.
//
// Weights and constants are those of the layer, whichever pass it is. Skips pair the passes of the two halves, and the
// KV cache has a place for each.
std::vector<int> layer_order(const ModelConfig& config, bool loop_on);

// Elements of the matrices that a token is multiplied with, a looped layer's each time; without the head's.
std::int64_t multiplied_elements(const ModelConfig& config, const ParamTable& params, bool loop_on);

}  // namespace thimble
