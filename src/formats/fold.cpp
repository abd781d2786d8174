#include "formats/fold.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "formats/model_file.h"
#include "model/params.h"

namespace thimble {

namespace {

void fold_to_apertus(FoldWeights& model, FoldReport& report) {
  fold_embed_norm(model, report);
  write_norm_weights(model, report);
  fold_shared_gain(model, report);
  report.push_back({"mlp = relu2", "xIELU with alpha_p = ln(e - 1), alpha_n = -100, beta = 0",
                    "within 1.8e-7 of each value"});
}

void fold_to_talkie(FoldWeights& model, FoldReport& report) {
  fold_scalar_mix(model, report);
  spread_gain(model, report);
  double_gate(model, report);
}

void store_folded(const FoldWeights& weights, FoldedModel& folded) {
  folded.model.weights = weights.block();
  folded.model.config.model = weights.config;
  folded.model.config.state = {};
  folded.model.architecture = folded.architecture;
}

}  // namespace

std::string FoldStep::line() const {
  return fmt::format("{} -> {}: {}", what, where, accuracy);
}

FoldStep softcap_dropped(double cap) {
  return {fmt::format("logit_softcap = {}", cap), "dropped",
          "greedy text is unchanged, probabilities change because large logits are no longer capped"};
}

FoldedModel fold_model(const ModelFile& source, const FoldOptions& options) {
  FoldedModel folded{folded_architecture(source.config.model, options), source, {}};
  FoldWeights model(source);
  if (options.drop_softcap) drop_softcap(model, folded.steps);
  fold_branch_scale(model, folded.steps);
  fold_rope_direction(model, folded.steps);
  fold_layer_scale(model, folded.steps);
  unroll_loop(model, folded.steps);
  widen_leaky_relu2(model, folded.steps);
  untie_head(model, folded.steps);
  if (folded.architecture == kApertus)
    fold_to_apertus(model, folded.steps);
  else
    fold_to_talkie(model, folded.steps);
  store_folded(model, folded);
  return folded;
}

FoldedModel unrolled_model(const ModelFile& source) {
  FoldedModel unrolled{source.architecture, source, {}};
  if (source.config.model.loop_count == 0) return unrolled;
  FoldWeights model(source);
  unroll_loop(model, unrolled.steps);
  unrolled.architecture = architecture_of(model.config);
  store_folded(model, unrolled);
  return unrolled;
}

FoldWeights::FoldWeights(const ModelFile& source)
    : config(source.config.model), loop_on(source.config.state.loop_on) {
  const ParamTable table(config);
  check(std::cmp_equal(source.weights.size(), table.block_size()), "[fold] found {} weights, expected {}",
        source.weights.size(), table.block_size());
  for (const Param& param : table.all()) {
    const auto values = param.in(std::span(source.weights));
    put(param.role, param.layer, Values(values.begin(), values.end()));
  }
}

FoldWeights::Values& FoldWeights::at(Role role, int layer) {
  const auto found = tensors_.find({role, layer});
  check(found != tensors_.end(), "[fold] no tensor of role {} in layer {}", static_cast<int>(role), layer);
  return found->second;
}

FoldWeights::Values FoldWeights::take(Role role, int layer) {
  Values values = std::move(at(role, layer));
  tensors_.erase({role, layer});
  return values;
}

std::vector<float> FoldWeights::block() const {
  const ParamTable table(config);
  std::vector<float> block(static_cast<std::size_t>(table.block_size()));
  for (const Param& param : table.all()) {
    const auto found = tensors_.find({param.role, param.layer});
    check(found != tensors_.end() && std::cmp_equal(found->second.size(), param.count()),
          "[fold] expected {} values for {}, found {}", param.count(), param.name,
          found == tensors_.end() ? 0 : found->second.size());
    std::ranges::transform(found->second, block.begin() + param.offset,
                           [](double value) { return static_cast<float>(value); });
  }
  check(tensors_.size() == table.all().size(), "[fold] found {} tensors, the folded model has {}",
        tensors_.size(), table.all().size());
  return block;
}

void scale(FoldWeights::Values& values, double factor) {
  for (double& value : values) value *= factor;
}

void scale_rows(FoldWeights::Values& matrix, std::span<const double> factors) {
  check(!factors.empty() && matrix.size() % factors.size() == 0,
        "[fold] {} values cannot be split into {} rows", matrix.size(), factors.size());
  const std::size_t columns = matrix.size() / factors.size();
  for (std::size_t i = 0; i < matrix.size(); ++i) matrix[i] *= factors[i / columns];
}

namespace {

using Values = FoldWeights::Values;

constexpr const char* kExact = "exact";
constexpr const char* kRounded = "exact, rounded once to f32";

// The matrices of a layer that read the normalized residual stream.
std::vector<Role> stream_readers(const ModelConfig& config) {
  using enum Role;
  std::vector<Role> roles = {query, key, value};
  if (config.gated_mlp())
    roles.insert(roles.end(), {mlp_gate, mlp_up});
  else
    roles.push_back(mlp_fc);
  return roles;
}

void scale_stream_readers(FoldWeights& model, int layer, double factor) {
  for (const Role role : stream_readers(model.config)) scale(model.at(role, layer), factor);
}

// Normalizes each row of x as rmsnorm does. eps is a float, as in the engine.
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

// [C, F] -> [C, 2F]: every row is followed by a copy of itself times factor.
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

// Rotating (a, -b) by theta equals rotating (a, b) by -theta and negating its second half. The two
// negations cancel in q . k.
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
    scale_stream_readers(model, layer, static_cast<double>(1.0f / std::sqrt(static_cast<float>(layer + 1))));
  model.config.layer_scale = false;
  report.push_back({"layer_scale", "q, k, v and the MLP's first matrix", kRounded});
}

// Requires layer_scale to be off: its factor depends on the layer's index, which unrolling changes.
void unroll_loop(FoldWeights& model, FoldReport& report) {
  ModelConfig& c = model.config;
  if (c.loop_count == 0) return;
  const std::vector<int> order = layer_order(c, model.loop_on);
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
}

// leaky_relu2(z) = relu2(z) + relu2(-z) / 4
void widen_leaky_relu2(FoldWeights& model, FoldReport& report) {
  ModelConfig& c = model.config;
  if (c.mlp != MlpKind::leaky_relu2) return;
  for (int layer = 0; layer < model.layers(); ++layer) {
    Values& fc = model.at(Role::mlp_fc, layer);
    const Values once = fc;
    append_scaled(fc, once, -1);
    Values& proj = model.at(Role::mlp_proj, layer);
    proj = widened_columns(proj, static_cast<std::size_t>(c.mlp_hidden), 0.25);
  }
  c.mlp = MlpKind::relu2;
  c.mlp_hidden *= 2;
  report.push_back({"mlp = leaky_relu2", "relu2(z) + relu2(-z) / 4: mlp_hidden doubled", kExact});
}

void untie_head(FoldWeights& model, FoldReport& report) {
  if (!model.config.tie_embeddings) return;
  model.put(Role::head, -1, model.at(Role::token_embedding));
  model.config.tie_embeddings = false;
  report.push_back({"tie_embeddings", "the head is stored as a copy of the embedding", kExact});
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

// Layer l mixes a x + b x0. Every reader of the stream normalizes it, so the scaled stream z = x /
// P works as well, with P(0) = a(0) + b(0) and P(l) = a(l) P(l-1). Branch outputs are divided by P,
// the embedding is mixed in with b / P, and a negative P flips the sign of the matrices that read
// z.
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
    check(std::isnormal(product), Hint{"export it with --format safetensors, which keeps all switches"},
          "residual_mix scales the stream by {} in layer {}", product, layer);
    mix = {1, layer == 0 ? 0 : mix[1] / product};
    for (const Role role : {Role::attn_proj, Role::mlp_proj}) scale(model.at(role, layer), 1 / product);
    if (product < 0) scale_stream_readers(model, layer, -1);
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
  if (shared) report.push_back({"q_gain = shared", "the same gain in every head", kExact});
}

// silu(a z) z / a -> relu(z)^2 as a grows; the error is at most 0.483 / a^2. Powers of two are
// exact. The factors of 1/16 on up and down keep the weights and their products well within f16.
void double_gate(FoldWeights& model, FoldReport& report) {
  constexpr double kGate = 256, kUp = 1.0 / 16, kDown = 1 / (kGate * kUp), kWorst = 0.483 / (kGate * kGate);
  ModelConfig& c = model.config;
  if (c.mlp != MlpKind::relu2) return;
  for (int layer = 0; layer < model.layers(); ++layer) {
    Values gate = model.take(Role::mlp_fc, layer);
    Values up = gate;
    scale(gate, kGate);
    scale(up, kUp);
    model.put(Role::mlp_gate, layer, std::move(gate));
    model.put(Role::mlp_up, layer, std::move(up));
    scale(model.at(Role::mlp_proj, layer), kDown);
  }
  c.mlp = MlpKind::swiglu;
  report.push_back({"mlp = relu2", fmt::format("swiglu with a gate of {} z", kGate),
                    fmt::format("each hidden unit within {:.1e}", kWorst)});
}

namespace {

struct NamedRole {
  Role role;
  std::string_view name;
};
using enum Role;

constexpr NamedRole kApertusRoles[] = {
    {token_embedding, "token_embd.weight"},
    {final_norm, "output_norm.weight"},
    {head, "output.weight"},
    {attn_norm, "blk.{}.attn_norm.weight"},
    {query, "blk.{}.attn_q.weight"},
    {key, "blk.{}.attn_k.weight"},
    {value, "blk.{}.attn_v.weight"},
    {query_norm, "blk.{}.attn_q_norm.weight"},
    {key_norm, "blk.{}.attn_k_norm.weight"},
    {attn_proj, "blk.{}.attn_output.weight"},
    {mlp_norm, "blk.{}.ffn_norm.weight"},
    {mlp_fc, "blk.{}.ffn_up.weight"},
    {mlp_proj, "blk.{}.ffn_down.weight"},
};

constexpr NamedRole kTalkieRoles[] = {
    {token_embedding, "token_embd.weight"},
    {head, "output.weight"},
    {query, "blk.{}.attn_q.weight"},
    {key, "blk.{}.attn_k.weight"},
    {value, "blk.{}.attn_v.weight"},
    {q_gain, "blk.{}.attn_q_norm.weight"},
    {attn_proj, "blk.{}.attn_output.weight"},
    {mlp_gate, "blk.{}.ffn_gate.weight"},
    {mlp_up, "blk.{}.ffn_up.weight"},
    {mlp_proj, "blk.{}.ffn_down.weight"},
    {resid_mix, "blk.{}.layer_output_scale.weight"},
};

std::span<const NamedRole> roles_of(std::string_view architecture) {
  check(is_folded_architecture(architecture), "[fold] expected apertus or talkie, found '{}'", architecture);
  return architecture == kApertus ? std::span<const NamedRole>(kApertusRoles) : kTalkieRoles;
}

std::vector<float> values_of(const FoldedModel& folded, const ParamTable& table, const FoldedTensor& tensor) {
  // The last layer has no successor that mixes in the embedding.
  if (tensor.output_scale && tensor.layer == folded.model.config.model.layers) return {0};
  const ParamView view = table.view(tensor.role, std::max(tensor.layer, 0));
  const auto first = folded.model.weights.begin() + view.offset;
  if (tensor.output_scale) return {first[1]};
  return std::vector<float>(first, first + view.count());
}

}  // namespace

bool is_folded_architecture(std::string_view architecture) {
  return architecture == kApertus || architecture == kTalkie;
}

ModelConfig folded_config(std::string_view architecture, ModelConfig sizes) {
  const bool apertus = architecture == kApertus;
  sizes.norm = apertus ? NormKind::rms_weight : NormKind::rms;
  sizes.mlp = apertus ? MlpKind::relu2 : MlpKind::swiglu;
  sizes.embed_norm = !apertus;
  sizes.q_gain = apertus ? GainKind::none : GainKind::head;
  sizes.residual_mix = apertus ? MixKind::none : MixKind::scalar;
  sizes.qk_norm = true;
  sizes.tie_embeddings = false;
  return resolved(sizes);
}

std::vector<FoldedTensor> folded_tensors(std::string_view architecture, const ModelConfig& config) {
  const ParamTable table(config);
  std::vector<FoldedTensor> tensors;
  for (const NamedRole& named : roles_of(architecture)) {
    const bool scale = named.role == resid_mix;
    for (const Param& param : table.all()) {
      if (param.role != named.role) continue;
      std::vector<std::int64_t> dims = param.dims;         // not param.rows: a matrix may have one row
      if (named.role == q_gain) dims = {config.heads, 1};  // one row of one value per head
      if (scale) dims = {1};
      tensors.push_back({.name = fmt::format(fmt::runtime(named.name), param.layer),
                         .dims = std::move(dims),
                         .role = named.role,
                         .layer = param.layer + (scale ? 1 : 0),
                         .output_scale = scale});
    }
  }
  return tensors;
}

GgufSettings folded_settings(std::string_view architecture) {
  if (architecture == kTalkie) return {{"talkie.logit_scale", 1.0f}};
  // softplus(alpha_p) = 1, softplus(alpha_n) = 0 and beta = 0 give x^2 for x > 0, and 0 elsewhere.
  return {{"xielu.alpha_p", 0.5413248546f},
          {"xielu.alpha_n", -100.0f},
          {"xielu.beta", 0.0f},
          {"xielu.eps", -1e-6f}};
}

ExportedModel exported_model(const FoldedModel& folded) {
  const ModelConfig& config = folded.model.config.model;
  const ParamTable table(config);
  ExportedModel model{folded.architecture, common_settings(folded.architecture, config), {}, {}};
  for (auto& setting : folded_settings(folded.architecture)) model.settings.push_back(std::move(setting));
  for (const FoldedTensor& tensor : folded_tensors(folded.architecture, config))
    model.tensors.push_back({.name = tensor.name,
                             .dims = tensor.dims,
                             .values = values_of(folded, table, tensor),
                             .plain = tensor.role == q_gain || tensor.output_scale});
  for (const FoldStep& step : folded.steps) model.folded.push_back(step.line());
  return model;
}

// The limits of llama.cpp's architectures, and the choice of one for a model.

namespace {

// Limits common to both architectures: RMS norms, norms on q and k, RoPE on full heads, no biases.
std::vector<std::string> common_reasons(const ModelConfig& c, bool drop_softcap) {
  std::vector<std::string> reasons;
  const auto refuse = [&](bool wrong, std::string reason) {
    if (wrong) reasons.push_back(std::move(reason));
  };
  refuse(c.unet_skips, "unet_skips: no architecture adds an early layer to a late one");
  refuse(c.parallel_from >= 0, "parallel_from: the MLP always runs after attention and reads its output");
  refuse(c.residual_mix == MixKind::channel,
         "residual_mix = channel: per-channel factors change the norm's direction (scalar can be folded)");
  refuse(c.logit_softcap > 0 && !drop_softcap,
         fmt::format("logit_softcap = {}: no architecture without post-norms has one", c.logit_softcap));
  refuse(c.bigram_buckets > 0, "bigram_buckets: there are no bigram embeddings");
  refuse(c.smear_gate, "smear_gate: there is no gate to the previous token");
  refuse(c.exclusive_attention, "exclusive_attention: the result of attention is always used unchanged");
  refuse(c.norm == NormKind::layer, "norm = layer: only RMS norms are supported");
  refuse(!c.final_norm, "final_norm = false: there is always a norm before the head");
  refuse(!c.qk_norm, "qk_norm = false: q and k are always normalized");
  refuse(c.position != PositionKind::rope, "position: only rope is supported");
  refuse(c.position == PositionKind::rope && c.rope_dims != c.head_dim,
         fmt::format("rope_dims = {}: all dimensions of a head are rotated (head_dim = {})", c.rope_dims,
                     c.head_dim));
  refuse(c.bias || c.qkv_bias, "bias, qkv_bias: projections have no biases");
  refuse(c.mlp == MlpKind::relu || c.mlp == MlpKind::gelu,
         "mlp: only relu2, leaky_relu2 and swiglu can be expressed");
  return reasons;
}

std::vector<std::string> apertus_reasons(const ModelConfig& c) {
  std::vector<std::string> reasons;
  if (c.q_gain == GainKind::head) reasons.push_back("q_gain = head: all heads of a layer share a gain");
  if (c.residual_mix == MixKind::scalar)
    reasons.push_back("residual_mix = scalar: the embedding is not mixed in again");
  if (c.mlp == MlpKind::swiglu) reasons.push_back("mlp = swiglu: the MLP has no gate");
  return reasons;
}

std::vector<std::string> talkie_reasons(const ModelConfig& c) {
  std::vector<std::string> reasons;
  if (c.norm == NormKind::rms_weight)
    reasons.push_back("norm = rms_weight: the norms of q and k have no weight");
  if (!c.embed_norm) reasons.push_back("embed_norm = false: the embedding is always normalized");
  return reasons;
}

Hint hint_for(const ModelConfig& config, const FoldOptions& options) {
  const char* cap = config.logit_softcap > 0 && !options.drop_softcap
                        ? ", or pass --drop-softcap: without the softcap, greedy text is unchanged, but "
                          "probabilities change"
                        : "";
  return Hint{
      fmt::format("train with --preset export, which uses only features that llama.cpp supports{}", cap)};
}

}  // namespace

std::vector<std::string> reasons_against(std::string_view architecture, const ModelConfig& config,
                                         bool drop_softcap) {
  check(architecture == kApertus || architecture == kTalkie, "[fold] expected apertus or talkie, found '{}'",
        architecture);
  std::vector<std::string> reasons = common_reasons(config, drop_softcap);
  for (std::string& reason : architecture == kApertus ? apertus_reasons(config) : talkie_reasons(config))
    reasons.push_back(std::move(reason));
  return reasons;
}

std::string folded_architecture(const ModelConfig& config, const FoldOptions& options) {
  if (!options.architecture.empty()) {
    const auto reasons = reasons_against(options.architecture, config, options.drop_softcap);
    check(reasons.empty(), hint_for(config, options), "llama.cpp's {} cannot express this model: {}",
          options.architecture, listed(reasons));
    return options.architecture;
  }
  for (const std::string_view architecture : {kApertus, kTalkie})
    if (reasons_against(architecture, config, options.drop_softcap).empty()) return std::string(architecture);
  std::vector<std::string> reasons = common_reasons(config, options.drop_softcap);
  if (const auto own = apertus_reasons(config); !own.empty())
    reasons.push_back(fmt::format("as apertus: {}", joined(own, ", ")));
  if (const auto own = talkie_reasons(config); !own.empty())
    reasons.push_back(fmt::format("as talkie: {}", joined(own, ", ")));
  fail(hint_for(config, options), "no architecture of llama.cpp can express this model: {}", listed(reasons));
}

}  // namespace thimble
