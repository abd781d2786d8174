#include "model/params.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/digest.h"
#include "base/error.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "config/keys.h"

namespace thimble {

namespace {

const RoleRow& facts_of(Role role) {
  return all_roles()[static_cast<std::size_t>(role)];
}

std::string name_of(const RoleRow& row, bool transformers, int layer) {
  return fmt::format(fmt::runtime(transformers ? row.transformers_name : row.golf_name), layer);
}

}  // namespace

bool uses_transformers_names(const ModelConfig& config) {
  const auto roles = all_roles();
  return std::none_of(roles.begin(), roles.end(), [&](const RoleRow& row) {
    return row.transformers_name.empty() && dims_of(config, row.role).has_value();
  });
}

ParamTable::ParamTable(const ModelConfig& config) {
  validate(config);  // bounds all sizes, so the arithmetic below cannot overflow
  const auto rows = all_roles();
  for (std::size_t begin = 0, end; begin < rows.size(); begin = end) {
    std::vector<Role> group = {rows[begin].role};
    for (end = begin + 1; end < rows.size() && rows[end].joined; ++end) group.push_back(rows[end].role);
    if (dims_of(config, group.front())) lay_out(config, group);
  }
  for (std::size_t i = 0; i < params_.size(); ++i) by_name_.emplace(params_[i].name, i);
}

ParamTable::ParamTable(std::vector<Param> params) : params_(std::move(params)) {
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const Param& param = params_[i];
    by_name_.emplace(param.name, i);
    count_ += param.count();
    group_counts_[static_cast<std::size_t>(param.group)] += param.count();
    block_size_ = aligned(param.offset + param.count());
  }
}

void ParamTable::lay_out(const ModelConfig& config, std::span<const Role> group) {
  std::int64_t size = 0;
  for (Role role : group) {
    const std::vector<std::int64_t> dims = dims_of(config, role).value();
    const std::int64_t rows = dims.size() == 2 ? dims[0] : 1, cols = dims.empty() ? 1 : dims.back();
    slots_[static_cast<std::size_t>(role)] = {block_size_ + size, rows, cols, 0};
    size += rows * cols;
  }
  const bool in_block = facts_of(group.front()).in_block(), transformers = uses_transformers_names(config);
  const auto layers = static_cast<int>(in_block ? config.layers : 1);
  for (int layer = 0; layer < layers; ++layer)
    for (Role role : group) {
      const RoleRow& row = facts_of(role);
      Slot& slot = slots_[static_cast<std::size_t>(role)];
      slot.stride = aligned(size);
      params_.push_back({.name = name_of(row, transformers, layer),
                         .dims = dims_of(config, role).value(),
                         .rows = slot.rows,
                         .cols = slot.cols,
                         .role = role,
                         .layer = in_block ? layer : -1,
                         .init = init_of(config, role, slot.rows, slot.cols),
                         .group = row.group,
                         .decays = row.decays,
                         .control = row.control,
                         .offset = slot.offset + layer * slot.stride});
      count_ += params_.back().count();
      group_counts_[static_cast<std::size_t>(row.group)] += params_.back().count();
    }
  block_size_ += layers * aligned(size);
}

const Param* ParamTable::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &params_[found->second];
}

ParamView ParamTable::view(Role role, int layer) const {
  const Slot& slot = this->slot(role);
  return slot.rows == 0 ? ParamView{} : ParamView{slot.offset + layer * slot.stride, slot.rows, slot.cols};
}

ParamView ParamTable::joined(std::span<const Role> roles, int layer) const {
  ParamView group = view(roles.front(), layer);
  if (!group) return {};
  // Decided by the role, not by the shape: a matrix may have one row.
  const bool vectors = facts_of(roles.front()).group == ParamGroup::scalar;
  for (Role role : roles.subspan(1)) {
    const ParamView part = view(role, layer);
    (vectors ? group.cols : group.rows) += vectors ? part.cols : part.rows;
  }
  return group;
}

ParamView ParamTable::head() const {
  const ParamView own = view(Role::head);
  return own ? own : token_embedding();
}

ParamView ParamTable::mlp_in(int layer) const {
  const ParamView fc = view(Role::mlp_fc, layer);
  return fc ? fc : joined({Role::mlp_gate, Role::mlp_up}, layer);
}

ParamView ParamTable::mlp_in_bias(int layer) const {
  const ParamView fc = view(Role::mlp_fc_bias, layer);
  return fc ? fc : joined({Role::mlp_gate_bias, Role::mlp_up_bias}, layer);
}

ParamView ParamTable::row_of(Role role, int row) const {
  const ParamView all = view(role);
  if (!all) return {};
  return {all.offset + row * all.cols, 1, all.cols};
}

namespace {

// Both values are those of the parameter-golf records.
constexpr double kBigramScale = 0.05;
constexpr std::int64_t kOrthogonalSide = 64;  // smaller matrices keep the uniform init

RoleRow matrix(Role role, std::string_view golf, std::string_view transformers, bool joined = false) {
  return {role, golf, transformers, ParamGroup::matrix, joined, true, false};
}
RoleRow table(Role role, std::string_view golf, std::string_view transformers) {
  return {role, golf, transformers, ParamGroup::embedding, false, true, false};
}
// Norm weights and biases do not decay. The neutral value of a norm weight is 1, so decay toward 0
// would not regularize it.
RoleRow vector(Role role, std::string_view golf, std::string_view transformers, bool joined = false) {
  return {role, golf, transformers, ParamGroup::scalar, joined, false, true};
}
// Tensors of golf models. The records' AdamW applies weight decay to them too.
RoleRow control(Role role, std::string_view golf) {
  return {role, golf, "", ParamGroup::scalar, false, true, true};
}

std::vector<RoleRow> role_table() {
  using enum Role;
  return {
      table(token_embedding, "tok_emb.weight", "model.embed_tokens.weight"),
      table(position_embedding, "pos_emb.weight", ""),
      {head, "lm_head.weight", "lm_head.weight", ParamGroup::head, false, true, false},
      table(bigram_embedding, "bigram.embed.weight", ""),
      matrix(bigram_proj, "bigram.proj.weight", ""),
      matrix(query, "blocks.{}.attn.c_q.weight", "model.layers.{}.self_attn.q_proj.weight"),
      matrix(key, "blocks.{}.attn.c_k.weight", "model.layers.{}.self_attn.k_proj.weight", true),
      matrix(value, "blocks.{}.attn.c_v.weight", "model.layers.{}.self_attn.v_proj.weight", true),
      matrix(attn_proj, "blocks.{}.attn.proj.weight", "model.layers.{}.self_attn.o_proj.weight"),
      matrix(mlp_fc, "blocks.{}.mlp.fc.weight", ""),
      matrix(mlp_gate, "blocks.{}.mlp.gate.weight", "model.layers.{}.mlp.gate_proj.weight"),
      matrix(mlp_up, "blocks.{}.mlp.up.weight", "model.layers.{}.mlp.up_proj.weight", true),
      matrix(mlp_proj, "blocks.{}.mlp.proj.weight", "model.layers.{}.mlp.down_proj.weight"),
      vector(query_bias, "blocks.{}.attn.c_q.bias", "model.layers.{}.self_attn.q_proj.bias"),
      vector(key_bias, "blocks.{}.attn.c_k.bias", "model.layers.{}.self_attn.k_proj.bias", true),
      vector(value_bias, "blocks.{}.attn.c_v.bias", "model.layers.{}.self_attn.v_proj.bias", true),
      vector(attn_proj_bias, "blocks.{}.attn.proj.bias", "model.layers.{}.self_attn.o_proj.bias"),
      vector(mlp_fc_bias, "blocks.{}.mlp.fc.bias", ""),
      vector(mlp_gate_bias, "blocks.{}.mlp.gate.bias", "model.layers.{}.mlp.gate_proj.bias"),
      vector(mlp_up_bias, "blocks.{}.mlp.up.bias", "model.layers.{}.mlp.up_proj.bias", true),
      vector(mlp_proj_bias, "blocks.{}.mlp.proj.bias", "model.layers.{}.mlp.down_proj.bias"),
      vector(attn_norm, "blocks.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
      vector(attn_norm_bias, "blocks.{}.attn_norm.bias", ""),
      vector(mlp_norm, "blocks.{}.mlp_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
      vector(mlp_norm_bias, "blocks.{}.mlp_norm.bias", ""),
      vector(attn_post_norm, "blocks.{}.attn_post_norm.weight", ""),
      vector(mlp_post_norm, "blocks.{}.mlp_post_norm.weight", ""),
      vector(query_norm, "blocks.{}.attn.q_norm.weight", "model.layers.{}.self_attn.q_norm.weight"),
      vector(key_norm, "blocks.{}.attn.k_norm.weight", "model.layers.{}.self_attn.k_norm.weight"),
      control(q_gain, "blocks.{}.attn.q_gain"),
      control(attn_scale, "blocks.{}.attn_scale"),
      control(mlp_scale, "blocks.{}.mlp_scale"),
      control(resid_mix, "blocks.{}.resid_mix"),
      control(skip_weights, "skip_weights"),
      control(skip_gates, "skip_gates"),
      vector(embed_norm, "emb_norm.weight", ""),
      vector(embed_norm_bias, "emb_norm.bias", ""),
      vector(final_norm, "final_norm.weight", "model.norm.weight"),
      vector(final_norm_bias, "final_norm.bias", ""),
      control(smear_gate, "smear.gate"),
      control(bigram_scale, "bigram.scale"),
  };
}

Init constant(double value) {
  return {Init::Kind::constant, value};
}
Init normal(double deviation) {
  return {Init::Kind::normal, deviation};
}

// PyTorch's default for Linear: uniform in +-1 / sqrt(fan_in).
Init uniform(std::int64_t columns) {
  return {Init::Kind::uniform, 1 / std::sqrt(static_cast<double>(columns))};
}

// The init of a matrix that is not an output projection.
Init init_of_matrix(const ModelConfig& config, std::int64_t rows, std::int64_t cols, double gain) {
  switch (config.init) {
    case InitKind::normal:
      return normal(config.init_std);
    case InitKind::orthogonal:
      if (std::min(rows, cols) >= kOrthogonalSide) return {Init::Kind::orthogonal, gain};
      break;
    case InitKind::golf:
      break;
  }
  return uniform(cols);
}

}  // namespace

std::span<const RoleRow> all_roles() {
  static const std::vector<RoleRow> rows = role_table();
  return rows;
}

std::optional<std::vector<std::int64_t>> dims_of(const ModelConfig& c, Role role) {
  using Dims = std::vector<std::int64_t>;
  using enum Role;
  const auto if_has = [](bool has, Dims dims) { return has ? std::optional(std::move(dims)) : std::nullopt; };
  const bool norm_weight = c.norm != NormKind::rms;
  const bool norm_bias = c.norm == NormKind::layer && c.bias;
  const bool head_norm = c.qk_norm && c.norm == NormKind::rms_weight;
  const bool qkv_bias = c.qkv_bias || c.bias, gated = c.gated_mlp(), bigram = c.bigram_buckets > 0;
  switch (role) {
    case token_embedding:
      return Dims{c.vocab_size, c.dim};
    case position_embedding:
      return if_has(c.position == PositionKind::learned, {c.context, c.dim});
    case head:
      return if_has(!c.tie_embeddings, {c.vocab_size, c.dim});
    case bigram_embedding:
      return if_has(bigram, {c.bigram_buckets, c.bigram_dim});
    case bigram_proj:
      return if_has(bigram, {c.dim, c.bigram_dim});
    case bigram_scale:
      return if_has(bigram, {});
    case smear_gate:
      return if_has(c.smear_gate, {c.dim});
    case query:
      return Dims{c.q_width(), c.dim};
    case key:
    case value:
      return Dims{c.kv_width(), c.dim};
    case attn_proj:
      return Dims{c.dim, c.q_width()};
    case mlp_fc:
      return if_has(!gated, {c.mlp_hidden, c.dim});
    case mlp_gate:
    case mlp_up:
      return if_has(gated, {c.mlp_hidden, c.dim});
    case mlp_proj:
      return Dims{c.dim, c.mlp_hidden};
    case query_bias:
      return if_has(qkv_bias, {c.q_width()});
    case key_bias:
    case value_bias:
      return if_has(qkv_bias, {c.kv_width()});
    case mlp_fc_bias:
      return if_has(c.bias && !gated, {c.mlp_hidden});
    case mlp_gate_bias:
    case mlp_up_bias:
      return if_has(c.bias && gated, {c.mlp_hidden});
    case attn_proj_bias:
    case mlp_proj_bias:
      return if_has(c.bias, {c.dim});
    case attn_norm:
    case mlp_norm:
      return if_has(norm_weight, {c.dim});
    case attn_norm_bias:
    case mlp_norm_bias:
      return if_has(norm_bias, {c.dim});
    case attn_post_norm:
    case mlp_post_norm:
      return if_has(c.post_norm, {c.dim});
    case embed_norm:
      return if_has(c.embed_norm && norm_weight, {c.dim});
    case embed_norm_bias:
      return if_has(c.embed_norm && norm_bias, {c.dim});
    case final_norm:
      return if_has(c.final_norm && norm_weight, {c.dim});
    case final_norm_bias:
      return if_has(c.final_norm && norm_bias, {c.dim});
    case query_norm:
    case key_norm:
      return if_has(head_norm, {c.head_dim});
    case q_gain:
      return if_has(c.q_gain != GainKind::none, {c.q_gain == GainKind::head ? c.heads : 1});
    case attn_scale:
    case mlp_scale:
      return if_has(c.branch_scale, {c.dim});
    case resid_mix:
      return if_has(c.residual_mix != MixKind::none, {2, c.residual_mix == MixKind::channel ? c.dim : 1});
    case skip_weights:
      return if_has(c.skips() > 0, {c.skips(), c.dim});
    case skip_gates:
      return if_has(c.skip_gates && c.skips() > 0, {c.skips(), c.dim});
  }
  return std::nullopt;
}

Init init_of(const ModelConfig& c, Role role, std::int64_t rows, std::int64_t cols) {
  using enum Role;
  const bool zero_outputs = c.init != InitKind::normal;
  const double depth_scale = 1 / std::sqrt(2 * static_cast<double>(c.layers));
  switch (role) {
    case token_embedding:
    case position_embedding:
      return normal(c.embed_init_std);
    case head:
      return zero_outputs ? constant(0) : normal(c.init_std);
    case attn_proj:
    case mlp_proj:
      // normal: GPT-2's scaling, which keeps the variance of the residual stream independent of
      // depth.
      return zero_outputs ? constant(0) : normal(c.init_std * depth_scale);
    case bigram_proj:
      return init_of_matrix(c, rows, cols, depth_scale);
    case query:
    case key:
    case value:
    case mlp_fc:
    case mlp_gate:
    case mlp_up:
      return init_of_matrix(c, rows, cols, 1);
    case attn_norm:
    case mlp_norm:
    case attn_post_norm:
    case mlp_post_norm:
    case embed_norm:
    case final_norm:
    case query_norm:
    case key_norm:
    case attn_scale:
    case mlp_scale:
    case skip_weights:
      return constant(1);
    case q_gain:
      return constant(c.q_gain_init);
    case resid_mix:
      return {Init::Kind::first_row, 1};
    case bigram_scale:
      return constant(kBigramScale);
    default:  // biases, skip gates, the smear gate, the bigram embedding
      return constant(0);
  }
}

std::vector<int> layer_order(const ModelConfig& config, bool loop_on) {
  const std::int64_t again = loop_on ? config.loop_count : 0;
  std::vector<int> order;
  for (std::int64_t layer = 0, rounds = again; layer < config.layers; ++layer) {
    order.push_back(static_cast<int>(layer));
    if (layer != config.loop_last || rounds == 0) continue;
    --rounds;
    layer = config.loop_first - 1;
  }
  return order;
}

namespace {

// Llama 3.1: wavelengths of more than original / low tokens are divided by `factor`, those of less
// than original / high are kept, and those between are interpolated.
double scaled_as_llama3(const ModelConfig& c, double frequency) {
  const double turns = static_cast<double>(c.rope_original_context) * frequency / (2 * std::numbers::pi);
  const double kept =
      std::clamp((turns - c.rope_low_factor) / (c.rope_high_factor - c.rope_low_factor), 0.0, 1.0);
  return frequency * (kept + (1 - kept) / c.rope_factor);
}

// YaRN (Peng et al. 2023): pairs of columns up to the one that turns beta_fast times in the
// original context are kept, those from the one that turns beta_slow times are divided, and those
// between are interpolated by their index.
double scaled_as_yarn(const ModelConfig& c, double base, std::size_t pair, double frequency) {
  const auto pair_with = [&](double turns) {
    return static_cast<double>(c.rope_dims) *
           std::log(static_cast<double>(c.rope_original_context) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(base));
  };
  const double low = std::max(std::floor(pair_with(c.rope_beta_fast)), 0.0);
  double high = std::min(std::ceil(pair_with(c.rope_beta_slow)), static_cast<double>(c.rope_dims - 1));
  if (high == low) high += 0.001;
  const double divided = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  return frequency * (1 - divided + divided / c.rope_factor);
}

RopeScaling scaling_of(const ModelConfig& c, bool local) {
  return local && c.local_rope_base > 0 ? RopeScaling::none : c.rope_scaling;
}

}  // namespace

double rope_attention_factor(const ModelConfig& c, bool local) {
  const RopeScaling scaling = scaling_of(c, local);
  if (scaling != RopeScaling::longrope && scaling != RopeScaling::yarn) return 1;
  if (c.rope_attention_factor > 0) return c.rope_attention_factor;
  if (c.rope_factor <= 1) return 1;
  if (scaling == RopeScaling::yarn) return 0.1 * std::log(c.rope_factor) + 1;
  return std::sqrt(1 + std::log(c.rope_factor) / std::log(static_cast<double>(c.rope_original_context)));
}

std::vector<double> rope_frequencies(const ModelConfig& c, bool local) {
  const bool own = local && c.local_rope_base > 0;
  const double base = own ? c.local_rope_base : c.rope_base;
  const RopeScaling scaling = scaling_of(c, local);
  std::vector<double> frequencies(static_cast<std::size_t>(c.rope_dims / 2)),
      divisors(frequencies.size(), 1.0);
  if (scaling == RopeScaling::longrope) {
    const bool is_long = c.context > c.rope_original_context;
    divisors = numbers_in(is_long ? c.rope_long_factors : c.rope_short_factors).value();
  }
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double plain = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(c.rope_dims));
    frequencies[i] = scaling == RopeScaling::linear   ? plain / c.rope_factor
                     : scaling == RopeScaling::llama3 ? scaled_as_llama3(c, plain)
                     : scaling == RopeScaling::yarn   ? scaled_as_yarn(c, base, i, plain)
                                                      : plain / divisors.at(i);
  }
  return frequencies;
}

std::int64_t multiplied_elements(const ModelConfig& config, const ParamTable& params, bool loop_on) {
  std::int64_t elements = params.bigram_proj().count();
  for (const int layer : layer_order(config, loop_on))
    for (const ParamView& view :
         {params.qkv(layer), params.attn_proj(layer), params.mlp_in(layer), params.mlp_proj(layer)})
      elements += view.count();
  return elements;
}

namespace {

constexpr std::size_t kLanes = 8;  // independent partial sums, added in a fixed order

double dot(const double* a, const double* b, std::size_t count) {
  double sums[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
#pragma omp simd
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  for (; i < count; ++i) sums[0] += a[i] * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// Removes from `other` its component along `unit`.
void project_out(const double* unit, double* other, std::size_t size) {
  const double along = dot(unit, other, size);
#pragma omp simd
  for (std::size_t c = 0; c < size; ++c) other[c] -= along * unit[c];
}

// Modified Gram-Schmidt over `count` vectors of `size` >= count elements. Applied to normal random
// numbers it gives a uniformly random rotation, like the QR in torch.nn.init.orthogonal_.
void make_orthonormal(std::vector<double>& vectors, std::size_t count, std::size_t size) {
  constexpr std::size_t kPanel = 16;  // unit vectors that stay in cache while later vectors are projected
  for (std::size_t begin = 0; begin < count; begin += kPanel) {
    const std::size_t end = std::min(begin + kPanel, count);
    for (std::size_t i = begin; i < end; ++i) {
      double* unit = &vectors[i * size];
      for (std::size_t k = begin; k < i; ++k) project_out(&vectors[k * size], unit, size);
      const double scale = 1 / std::sqrt(dot(unit, unit, size));
      for (std::size_t c = 0; c < size; ++c) unit[c] *= scale;
    }
    for (std::size_t j = end; j < count; ++j)
      for (std::size_t i = begin; i < end; ++i) project_out(&vectors[i * size], &vectors[j * size], size);
  }
}

// Turns a tensor of standard normal values into an orthogonal one times the gain.
void orthogonalize(const Param& param, std::span<float> values) {
  const auto rows = static_cast<std::size_t>(param.rows), cols = static_cast<std::size_t>(param.cols);
  const bool wide = rows <= cols;
  const std::size_t count = std::min(rows, cols), size = std::max(rows, cols);
  const auto index = [=](std::size_t r, std::size_t c) { return wide ? r * size + c : c * size + r; };

  std::vector<double> vectors(values.size());
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < cols; ++c) vectors[index(r, c)] = values[r * cols + c];
  make_orthonormal(vectors, count, size);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < cols; ++c)
      values[r * cols + c] = static_cast<float>(param.init.value * vectors[index(r, c)]);
}

void fill(const Param& param, std::uint64_t seed, std::span<float> values) {
  const std::uint64_t stream = digest_of(param.name).low;
  const auto value = static_cast<float>(param.init.value);
  switch (param.init.kind) {
    case Init::Kind::constant:
      std::fill(values.begin(), values.end(), value);
      break;
    case Init::Kind::first_row:
      std::fill_n(values.begin(), param.cols, value);
      break;
    case Init::Kind::uniform:
      fill_uniform(values, -value, value, seed, stream);
      break;
    case Init::Kind::normal:
      fill_normal(values, 0, value, seed, stream);
      break;
    case Init::Kind::orthogonal:
      fill_normal(values, 0, 1, seed, stream);
      break;
  }
}

}  // namespace

void initialize(const ParamTable& table, std::uint64_t seed, std::span<float> block) {
  check(std::cmp_equal(block.size(), table.block_size()), "the block has {} elements, the parameters need {}",
        block.size(), table.block_size());
  std::fill(block.begin(), block.end(), 0.0f);
  std::vector<const Param*> orthogonal;
  for (const Param& param : table.all()) {
    fill(param, seed, param.in(block));
    if (param.init.kind == Init::Kind::orthogonal) orthogonal.push_back(&param);
  }
  // Parallel over tensors: each tensor is computed by one thread, so the result does not depend on
  // the number of threads.
  parallel_for(static_cast<std::int64_t>(orthogonal.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Param& param = *orthogonal[static_cast<std::size_t>(i)];
      orthogonalize(param, param.in(block));
    }
  });
}

}  // namespace thimble
