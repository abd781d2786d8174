#include "model/gpt.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "model/kv_cache.h"
#include "model/params.h"
#include "ops/attention.h"
#include "ops/cast.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/head_loss.h"
#include "ops/linear.h"
#include "ops/low_rank.h"
#include "ops/norm.h"
#include "ops/residual.h"
#include "ops/rope.h"

namespace thimble {

namespace {

ActivationKind activation_of(MlpKind mlp) {
  switch (mlp) {
    case MlpKind::relu:
      return ActivationKind::relu;
    case MlpKind::relu2:
      return ActivationKind::relu2;
    case MlpKind::leaky_relu2:
      return ActivationKind::leaky_relu2;
    case MlpKind::gelu:
      return ActivationKind::gelu;
    case MlpKind::geglu:
      return ActivationKind::geglu;
    case MlpKind::swiglu:
      break;
  }
  return ActivationKind::swiglu;
}

class Gpt {
 public:
  Gpt(const ModelConfig& config, const ParamTable& params, const GptOptions& options)
      : c_(config), p_(params), o_(options), order_(layer_order(config, options.loop_on)), t_(g_.tape) {
    g_.tape = Tape(options.dtype);
  }

  GptGraph record() {
    record_inputs();
    Value x = embed();
    const Value x0 = x;
    std::vector<Value> skips;
    const auto passes = static_cast<int>(order_.size()), half = passes / 2;
    for (int pass = 0; pass < passes; ++pass) {
      t_.segment(pass);
      if (pass >= half && !skips.empty()) {
        x = add_skip(x, skips.back(), pass - half);
        skips.pop_back();
      }
      x = block(pass, x, x0);
      if (c_.unet_skips && pass < half) skips.push_back(x);
    }
    t_.segment(-1);
    if (o_.mode == Mode::decoding && o_.gathered > 0) x = op::gather(t_, x, g_.gather);
    if (c_.final_norm) x = norm(x, p_.final_norm(), p_.final_norm_bias());
    head(t_.name(x, "final_norm"));
    return std::move(g_);
  }

 private:
  Value embed() {
    Value x = t_.name(embedding(p_.token_embedding(), g_.token, g_.token_order), "tok_emb");
    // x + (f - 1) x: one op for what gemma does.
    if (c_.embed_scale) x = op::add_scaled(t_, x, x, {}, std::sqrt(static_cast<float>(c_.dim)) - 1);
    if (c_.position == PositionKind::learned)
      x = op::add_scaled(t_, x, embedding(p_.position_embedding(), g_.embedded_position, g_.position_order));
    if (c_.bigram_buckets > 0) {
      const Value pairs = embedding(p_.bigram_embedding(), g_.bucket, g_.bucket_order);
      x = op::add_scaled(t_, x, linear(pairs, p_.bigram_proj(), {}), param(p_.bigram_scale()));
    }
    if (c_.embed_norm) x = norm(x, p_.embed_norm(), p_.embed_norm_bias());
    if (c_.smear_gate) x = op::smear(t_, x, param(p_.smear_gate()), g_.previous);
    return t_.name(dropout(x), "x0");
  }

  Value add_skip(Value x, Value skip, int index) {
    const Value weight = param(p_.skip_weight(index));
    if (!c_.skip_gates) return op::add_scaled(t_, x, skip, weight);
    return op::gated_skip(t_, x, skip, weight, param(p_.skip_gate(index)));
  }

  Value block(int pass, Value x, Value x0) {
    const int layer = layer_of(pass);
    if (c_.residual_mix != MixKind::none) x = op::residual_mix(t_, x, x0, param(p_.resid_mix(layer)));
    const Value h = t_.name(norm(x, p_.attn_norm(layer), p_.attn_norm_bias(layer), layer_scale(layer)),
                            name(pass, "attn_norm"));
    const Value attended = t_.name(attention(pass, h), name(pass, "attn"));
    const Value branch = dropout(post_norm(attended, p_.attn_post_norm(layer)));
    const bool parallel = c_.parallel_from >= 0 && layer >= c_.parallel_from;
    const auto [stream, normed] = parallel ? add_parallel(pass, x, branch, h) : add_and_norm(pass, x, branch);
    const Value added = dropout(post_norm(mlp(pass, normed), p_.mlp_post_norm(layer)));
    return t_.name(op::add_scaled(t_, stream, added, param(p_.mlp_scale(layer))), name(pass, "out"));
  }

  Value mlp(int pass, Value h) {
    const int layer = layer_of(pass);
    h = linear(h, p_.mlp_in(layer), p_.mlp_in_bias(layer));
    h = linear(op::activation(t_, h, activation_of(c_.mlp)), p_.mlp_proj(layer), p_.mlp_proj_bias(layer));
    return t_.name(h, name(pass, "mlp"));
  }

  Value attention(int pass, Value h) {
    const int layer = layer_of(pass);
    const std::int64_t wide = c_.q_width(), narrow = c_.kv_width();
    const Value qkv = linear(h, p_.qkv(layer), p_.qkv_bias(layer));
    Value q = rotated(layer, t_.columns(qkv, 0, wide), p_.q_gain(layer), p_.query_norm(layer), c_.heads);
    Value k = rotated(layer, t_.columns(qkv, wide, narrow), {}, p_.key_norm(layer), c_.kv_heads);
    const Value v = t_.columns(qkv, wide + narrow, narrow);
    Value y = attend(pass, q, k, v);
    if (c_.exclusive_attention) y = op::exclusive_attention(t_, y, v, heads(), kv_heads());
    return linear(y, p_.attn_proj(layer), p_.attn_proj_bias(layer));
  }

  Value attend(int pass, Value q, Value k, Value v) {
    const double divisor = c_.query_scalar > 0 ? c_.query_scalar : static_cast<double>(c_.head_dim);
    const auto scale = 1.0f / std::sqrt(static_cast<float>(divisor));
    const auto cap = static_cast<float>(c_.attention_softcap);
    const int window = c_.is_local(layer_of(pass)) ? static_cast<int>(c_.window) : 0;
    if (o_.mode != Mode::decoding)
      return op::attention(t_, q, k, v, g_.first, {heads(), kv_heads(), scale, cap, window});
    const auto p = static_cast<std::size_t>(pass);
    return op::cached_attention(
        t_, q, k, v, g_.slot, g_.position, g_.k_cache[p], g_.v_cache[p],
        {heads(), kv_heads(), static_cast<int>(cache_rows(c_, layer_of(pass))), scale, cap, window});
  }

  Value rotated(int layer, Value x, ParamView gain, ParamView weight, std::int64_t count) {
    if (!c_.has_rope(layer) && !c_.qk_norm && !gain) return x;
    const Value turns = g_.local_turns && c_.is_local(layer) ? g_.local_turns : g_.turns;
    return op::rope(t_, x, g_.position, turns, param(gain), param(weight), static_cast<int>(count),
                    c_.qk_norm, eps());
  }

  Value post_norm(Value x, ParamView weight) { return weight ? norm(x, weight, {}) : x; }

  // stream = x + scale (.) branch, and its norm.
  op::Residual add_and_norm(int pass, Value x, Value branch) {
    const int layer = layer_of(pass);
    const Value scale = param(p_.attn_scale(layer));
    op::Residual out;
    if (c_.norm != NormKind::layer) {
      out = op::residual_norm(t_, x, branch, scale, param(p_.mlp_norm(layer)), eps(), layer_scale(layer));
    } else {
      out.stream = op::add_scaled(t_, x, branch, scale);
      out.normed = norm(out.stream, p_.mlp_norm(layer), p_.mlp_norm_bias(layer));
    }
    t_.name(out.normed, name(pass, "mlp_norm"));
    return out;
  }

  // stream = x + scale (.) branch. The MLP reads the norm of x instead of the stream's; without
  // norm weights that is the norm that attention already computed.
  op::Residual add_parallel(int pass, Value x, Value branch, Value normed) {
    const int layer = layer_of(pass);
    if (p_.mlp_norm(layer))
      normed = t_.name(norm(x, p_.mlp_norm(layer), p_.mlp_norm_bias(layer), layer_scale(layer)),
                       name(pass, "mlp_norm"));
    return {op::add_scaled(t_, x, branch, param(p_.attn_scale(layer))), normed};
  }

  Value norm(Value x, ParamView weight, ParamView bias, float scale = 1) {
    if (c_.norm == NormKind::layer) return op::layernorm(t_, x, param(weight), param(bias), eps());
    return op::rmsnorm(t_, x, param(weight), eps(), scale);
  }

  void head(Value x) {
    const Matrix w = matrix(p_.head());
    const auto cap = static_cast<float>(c_.logit_softcap);
    if (o_.mode != Mode::decoding)
      g_.nats = op::head_loss(t_, x, w.values, g_.target, g_.weight, cap, o_.head_chunk, w.scales);
    if (o_.mode != Mode::decoding && !o_.logits) return;
    g_.logits = op::linear(t_, x, w.values, {}, o_.mode == Mode::decoding, w.scales);
    if (cap > 0) g_.logits = op::softcap(t_, g_.logits, cap);
    if (o_.dtype != statistic_dtype(o_.dtype)) g_.logits = op::cast(t_, g_.logits, statistic_dtype(o_.dtype));
    t_.name(g_.logits, "logits");
  }

  Value linear(Value x, ParamView weight, ParamView bias) {
    const Matrix w = matrix(weight, o_.qat_bits);
    const bool invariant = o_.mode == Mode::decoding;
    const Value y = op::linear(t_, x, w.values, param(bias), invariant, w.scales);
    const MatrixAdapter* adapter = o_.adapters ? o_.adapters->of(weight) : nullptr;
    if (!adapter) return y;
    const Value h =
        op::linear(t_, dropout(x, o_.adapters->lora().dropout), adapter_matrix(adapter->a), {}, invariant);
    return op::low_rank(t_, y, h, adapter_matrix(adapter->b),
                        {.scale = static_cast<float>(o_.adapters->lora().scale()),
                         .rank = static_cast<std::int32_t>(o_.adapters->lora().rank),
                         .widths = adapter->widths,
                         .adapted = adapter->adapted});
  }

  Value embedding(ParamView table, Value index, Value order) {
    const Matrix w = matrix(table);
    return op::embedding(t_, w.values, index, order, w.scales);
  }

  struct Matrix {
    Value values, scales;
  };

  // A matrix or embedding: the stored weights, or a copy in the compute dtype. Scales, gains and
  // norm weights are used directly as f32 (param()).
  Matrix matrix(ParamView view, int bits = 0) {
    return o_.stored ? stored_matrix(view) : Matrix{compute_copy(view, bits), {}};
  }

  Matrix stored_matrix(ParamView view) {
    auto [entry, inserted] = stored_.try_emplace(view.offset);
    if (!inserted) return entry->second;
    const StoredWeights::Stored stored = o_.stored->view(view);
    const std::string name = name_at(p_, view.offset);
    entry->second.values = t_.stored(name, stored.values.shape());
    g_.parameters.emplace_back(entry->second.values, view);
    if (stored.scales) {
      entry->second.scales = t_.stored(name + ".scales", stored.scales.shape());
      g_.scales.emplace_back(entry->second.scales, view);
    }
    return entry->second;
  }

  Value compute_copy(ParamView view, int bits) {
    const Value master = param(view);
    auto [entry, inserted] = copies_.try_emplace({master.id, bits});
    if (inserted) entry->second = op::compute_copy(t_, master, bits);
    return entry->second;
  }

  Value adapter_matrix(ParamView view) {
    auto [entry, inserted] = adapters_.try_emplace(view.offset);
    if (!inserted) return entry->second;
    const Value master = t_.parameter(name_at(o_.adapters->params(), view.offset), view.rows, view.cols);
    g_.adapters.emplace_back(master, view);
    return entry->second = op::compute_copy(t_, master, 0);
  }

  Value dropout(Value x) { return dropout(x, c_.dropout); }
  Value dropout(Value x, double fraction) {
    return fraction > 0 && o_.mode == Mode::training
               ? op::dropout(t_, x, g_.dropout_seed, static_cast<float>(fraction))
               : x;
  }

  // A tensor is a single value however often it is used, so a tied head adds to the embedding's
  // gradient.
  Value param(ParamView view) {
    if (!view) return {};
    auto [entry, inserted] = parameters_.try_emplace(view.offset);
    if (inserted) {
      const std::string name = name_at(p_, view.offset);
      entry->second = o_.stored ? t_.stored(name, {view.rows, view.cols, statistic_dtype(o_.dtype)})
                                : t_.parameter(name, view.rows, view.cols);
      g_.parameters.emplace_back(entry->second, view);
    }
    return entry->second;
  }

  // For a group (q;k;v) the name of its first tensor; for a single row the name of its tensor.
  static std::string name_at(const ParamTable& table, std::int64_t offset) {
    const auto params = table.all();
    const auto after = std::ranges::upper_bound(params, offset, {}, &Param::offset);
    return std::prev(after)->name;
  }

  void record_inputs() {
    const bool decoding = o_.mode == Mode::decoding;
    const std::int64_t N = o_.rows, M = decoding && c_.smear_gate ? 2 * N : N;
    const auto integers = [&](const char* name, std::int64_t rows, bool used) {
      return used ? t_.integers(name, rows) : Value{};
    };
    const bool learned = c_.position == PositionKind::learned, bigram = c_.bigram_buckets > 0;
    g_.token = integers("token", M, true);
    g_.token_order = integers("token_order", M, !decoding);
    g_.bucket = integers("bucket", M, bigram);
    g_.bucket_order = integers("bucket_order", M, bigram && !decoding);
    g_.embedded_position = integers("embedded_position", M, learned);
    g_.position_order = integers("position_order", M, learned && !decoding);
    g_.previous = integers("previous", N, c_.smear_gate);
    g_.position = integers("position", N, true);
    g_.first = integers("first", N, !decoding);
    g_.slot = integers("slot", N, decoding);
    g_.gather = integers("gather", o_.gathered, decoding && o_.gathered > 0);
    g_.target = integers("target", N, !decoding);
    const bool drops = c_.dropout > 0 || (o_.adapters && o_.adapters->lora().dropout > 0);
    g_.dropout_seed = integers("dropout_seed", 2, drops && o_.mode == Mode::training);
    if (!decoding) g_.weight = t_.floats("weight", N, 1);
    // Without RoPE the query norm and gain still use the rope op, which needs at least one column
    // pair. Its table then contains only the angle 0.
    g_.turns = t_.floats("turns", c_.context, c_.position == PositionKind::rope ? c_.rope_dims : 2);
    if (c_.local_rope_base > 0) g_.local_turns = t_.floats("local_turns", c_.context, c_.rope_dims);
    for (int pass = 0; decoding && pass < std::ssize(order_); ++pass) {
      const std::int64_t rows = o_.slots * cache_rows(c_, layer_of(pass));
      g_.k_cache.push_back(t_.state(name(pass, "k_cache"), rows, c_.kv_width()));
      g_.v_cache.push_back(t_.state(name(pass, "v_cache"), rows, c_.kv_width()));
    }
  }

  int layer_of(int pass) const { return order_[static_cast<std::size_t>(pass)]; }

  // "blocks.4.attn"; for the second pass of a looped layer "blocks.4.pass2.attn".
  std::string name(int pass, const char* what) const {
    const int layer = layer_of(pass);
    const auto times = std::count(order_.begin(), order_.begin() + pass + 1, layer);
    if (times == 1) return fmt::format("blocks.{}.{}", layer, what);
    return fmt::format("blocks.{}.pass{}.{}", layer, times, what);
  }
  float layer_scale(int layer) const {
    return c_.layer_scale ? 1.0f / std::sqrt(static_cast<float>(layer + 1)) : 1.0f;
  }
  float eps() const { return static_cast<float>(c_.norm_eps); }
  int heads() const { return static_cast<int>(c_.heads); }
  int kv_heads() const { return static_cast<int>(c_.kv_heads); }

  const ModelConfig& c_;
  const ParamTable& p_;
  const GptOptions& o_;
  const std::vector<int> order_;  // the layer of each pass
  GptGraph g_;
  Tape& t_;
  std::map<std::int64_t, Value> parameters_;
  std::map<std::pair<int, int>, Value> copies_;  // by parameter and bits
  std::map<std::int64_t, Matrix> stored_;
  std::map<std::int64_t, Value> adapters_;
};

}  // namespace

GptGraph record_gpt(const ModelConfig& config, const ParamTable& params, const GptOptions& options) {
  return Gpt(config, params, options).record();
}

}  // namespace thimble
