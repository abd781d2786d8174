#include "formats/fold_steps.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/layer_order.h"
#include "model/param_roles.h"

namespace thimble {

namespace {

using Values = FoldWeights::Values;

constexpr const char* kExact = "exact";
constexpr const char* kRounded = "exact, rounded once to f32";

// What reads the norm of the stream in a layer.
std::vector<Role> readers(const ModelConfig& config) {
  using enum Role;
  std::vector<Role> roles = {query, key, value};
  if (config.gated_mlp())
    roles.insert(roles.end(), {mlp_gate, mlp_up});
  else
    roles.push_back(mlp_fc);
  return roles;
}

void scale_readers(FoldWeights& model, int layer, double factor) {
  for (const Role role : readers(model.config)) scale(model.at(role, layer), factor);
}

// Each row of x as rmsnorm has it. eps is the engine's: a float.
void norm_rows(Values& x, std::size_t columns, float eps) {
  for (std::size_t begin = 0; begin < x.size(); begin += columns) {
    double squares = 0;
    for (std::size_t i = begin; i < begin + columns; ++i) squares += x[i] * x[i];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(columns) + static_cast<double>(eps));
    for (std::size_t i = begin; i < begin + columns; ++i) x[i] *= rstd;
  }
}

void negate_second_halves(Values& matrix, std::size_t columns, std::size_t head_dim) {
  for (std::size_t i = 0; i < matrix.size(); ++i)
    if (i / columns % head_dim >= head_dim / 2) matrix[i] = -matrix[i];
}

void append_scaled(Values& values, std::span<const double> more, double factor) {
  for (const double value : more) values.push_back(factor * value);
}

// [C, F] -> [C, 2F]: every row, and behind it the row times factor.
Values widened_columns(const Values& matrix, std::size_t columns, double factor) {
  Values wide;
  wide.reserve(2 * matrix.size());
  for (std::size_t begin = 0; begin < matrix.size(); begin += columns) {
    const std::span row = std::span(matrix).subspan(begin, columns);
    append_scaled(wide, row, 1);
    append_scaled(wide, row, factor);
  }
  return wide;
}

}  // namespace

void drop_softcap(FoldWeights& model, FoldReport& report) {
  if (model.config.logit_softcap == 0) return;
  report.push_back(softcap_dropped(model.config.logit_softcap));
  model.config.logit_softcap = 0;
}

void fold_branch_scale(FoldWeights& model, FoldReport& report) {
  if (!model.config.branch_scale) return;
  for (int layer = 0; layer < model.layers(); ++layer) {
    scale_rows(model.at(Role::attn_proj, layer), model.take(Role::attn_scale, layer));
    scale_rows(model.at(Role::mlp_proj, layer), model.take(Role::mlp_scale, layer));
  }
  model.config.branch_scale = false;
  report.push_back({"branch_scale", "rows of attn.proj and mlp.proj", kRounded});
}

// Turning (a, -b) by theta is (a, b) turned by -theta, with its second half negated; in q . k that sign meets itself.
void fold_rope_direction(FoldWeights& model, FoldReport& report) {
  const ModelConfig& c = model.config;
  if (c.position != PositionKind::rope || c.rope_direction == 1) return;
  for (int layer = 0; layer < model.layers(); ++layer)
    for (const Role role : {Role::query, Role::key})
      negate_second_halves(model.at(role, layer), static_cast<std::size_t>(c.dim),
                           static_cast<std::size_t>(c.head_dim));
  model.config.rope_direction = 1;
  report.push_back({"rope_direction = -1", "second half of each head's rows of q and k, negated", kExact});
}

void fold_layer_scale(FoldWeights& model, FoldReport& report) {
  if (!model.config.layer_scale) return;
  for (int layer = 0; layer < model.layers(); ++layer)
    scale_readers(model, layer, static_cast<double>(1.0f / std::sqrt(static_cast<float>(layer + 1))));
  model.config.layer_scale = false;
  report.push_back({"layer_scale", "q, k, v and the MLP's first matrix", kRounded});
}

// A layer's constants are those of its place: expects layer_scale off.
void unroll_loop(FoldWeights& model, FoldReport& report) {
  ModelConfig& c = model.config;
  if (c.loop_count == 0) return;
  const std::vector<int> order = layer_order(c);
  for (const RoleRow& row : all_roles()) {
    if (!row.in_block() || !dims_of(c, row.role)) continue;
    std::vector<Values> layers;
    for (int layer = 0; layer < model.layers(); ++layer) layers.push_back(model.take(row.role, layer));
    for (std::size_t pass = 0; pass < order.size(); ++pass)
      model.put(row.role, static_cast<int>(pass), layers[static_cast<std::size_t>(order[pass])]);
  }
  report.push_back({fmt::format("loop_count = {}", c.loop_count),
                    fmt::format("{} layers, one for each pass", order.size()), kExact});
  c.layers = std::ssize(order);
  c.loop_first = c.loop_last = c.loop_count = 0;
  c.loop_on = true;
}

// leaky_relu2(z) = relu2(z) + relu2(-z) / 4
void widen_leaky_relu2(FoldWeights& model, FoldReport& report) {
  ModelConfig& c = model.config;
  if (c.mlp != ActivationKind::leaky_relu2) return;
  for (int layer = 0; layer < model.layers(); ++layer) {
    Values& fc = model.at(Role::mlp_fc, layer);
    const Values once = fc;
    append_scaled(fc, once, -1);
    Values& proj = model.at(Role::mlp_proj, layer);
    proj = widened_columns(proj, static_cast<std::size_t>(c.mlp_hidden), 0.25);
  }
  c.mlp = ActivationKind::relu2;
  c.mlp_hidden *= 2;
  report.push_back(
      {"mlp = leaky_relu2", "relu2 of z and of -z, a quarter of it: mlp_hidden doubled", kExact});
}

void untie_head(FoldWeights& model, FoldReport& report) {
  if (!model.config.tie_embeddings) return;
  model.put(Role::head, -1, model.at(Role::token_embedding));
  model.config.tie_embeddings = false;
  report.push_back({"tie_embeddings", "the head is written beside the embedding", kExact});
}

void fold_embed_norm(FoldWeights& model, FoldReport& report) {
  const ModelConfig& c = model.config;
  if (!c.embed_norm) return;
  Values& rows = model.at(Role::token_embedding);
  const auto columns = static_cast<std::size_t>(c.dim);
  norm_rows(rows, columns, static_cast<float>(c.norm_eps));
  if (c.norm == NormKind::rms_weight) {
    const Values weight = model.take(Role::embed_norm);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] *= weight[i % columns];
  }
  model.config.embed_norm = false;
  report.push_back({"embed_norm", "rows of the token embedding", kRounded});
}

void write_norm_weights(FoldWeights& model, FoldReport& report) {
  const ModelConfig& c = model.config;
  if (c.norm == NormKind::rms_weight) return;
  const auto ones = [](std::int64_t count) { return Values(static_cast<std::size_t>(count), 1.0); };
  for (int layer = 0; layer < model.layers(); ++layer) {
    for (const Role role : {Role::attn_norm, Role::mlp_norm}) model.put(role, layer, ones(c.dim));
    for (const Role role : {Role::query_norm, Role::key_norm}) model.put(role, layer, ones(c.head_dim));
  }
  model.put(Role::final_norm, -1, ones(c.dim));
  model.config.norm = NormKind::rms_weight;
  report.push_back({"norm = rms", "norm weights of 1", kExact});
}

void fold_shared_gain(FoldWeights& model, FoldReport& report) {
  if (model.config.q_gain == GainKind::none) return;
  for (int layer = 0; layer < model.layers(); ++layer)
    scale(model.at(Role::query_norm, layer), model.take(Role::q_gain, layer).at(0));
  model.config.q_gain = GainKind::none;
  report.push_back({"q_gain = shared", "weight of q's norm", kRounded});
}

// Every reader of the stream norms it, so a stream z = x / P does as well: P(0) = a(0) + b(0), P(l) = a(l) P(l-1), where
// layer l mixes a x + b x0. Branches shrink by P, the embedding comes in with b / P; a negative P turns what reads z.
void fold_scalar_mix(FoldWeights& model, FoldReport& report) {
  ModelConfig& c = model.config;
  if (c.residual_mix == MixKind::none) {
    for (int layer = 0; layer < model.layers(); ++layer) model.put(Role::resid_mix, layer, {1, 0});
    c.residual_mix = MixKind::scalar;
    return;
  }
  double product = 1, largest = 0;
  for (int layer = 0; layer < model.layers(); ++layer) {
    Values& mix = model.at(Role::resid_mix, layer);
    product = layer == 0 ? mix[0] + mix[1] : product * mix[0];
    check(std::isnormal(product), Hint{"the stream cannot be scaled back: this model stays here"},
          "residual_mix scales the stream by {} in layer {}", product, layer);
    mix = {1, layer == 0 ? 0 : mix[1] / product};
    for (const Role role : {Role::attn_proj, Role::mlp_proj}) scale(model.at(role, layer), 1 / product);
    if (product < 0) scale_readers(model, layer, -1);
    largest = std::max(largest, c.norm_eps / 2 * std::abs(1 - product * product));
  }
  if (product < 0) scale(model.at(Role::head), -1);
  report.push_back(
      {"residual_mix = scalar", "attn.proj, mlp.proj and the layers' output scales",
       fmt::format("exact but for norm_eps: a norm of a stream of size 1 changes by {:.1e}", largest)});
}

void spread_gain(FoldWeights& model, FoldReport& report) {
  ModelConfig& c = model.config;
  if (c.q_gain == GainKind::head) return;
  const bool shared = c.q_gain == GainKind::shared;
  for (int layer = 0; layer < model.layers(); ++layer) {
    const double gain = shared ? model.take(Role::q_gain, layer).at(0) : 1;
    model.put(Role::q_gain, layer, Values(static_cast<std::size_t>(c.heads), gain));
  }
  c.q_gain = GainKind::head;
  if (shared) report.push_back({"q_gain = shared", "the same gain for every head", kExact});
}

// silu(a z) z / a -> relu(z)^2 as a grows: off by at most 0.483 / a^2. Powers of two cost no bit; 1/16 each for up and
// down keeps their numbers, and the products between them, well inside f16.
void double_gate(FoldWeights& model, FoldReport& report) {
  constexpr double kGate = 256, kUp = 1.0 / 16, kDown = 1 / (kGate * kUp), kWorst = 0.483 / (kGate * kGate);
  ModelConfig& c = model.config;
  if (c.mlp != ActivationKind::relu2) return;
  for (int layer = 0; layer < model.layers(); ++layer) {
    Values gate = model.take(Role::mlp_fc, layer);
    Values up = gate;
    scale(gate, kGate);
    scale(up, kUp);
    model.put(Role::mlp_gate, layer, std::move(gate));
    model.put(Role::mlp_up, layer, std::move(up));
    scale(model.at(Role::mlp_proj, layer), kDown);
  }
  c.mlp = ActivationKind::swiglu;
  report.push_back({"mlp = relu2", fmt::format("swiglu with a gate of {} z", kGate),
                    fmt::format("each hidden unit within {:.1e}", kWorst)});
}

}  // namespace thimble
