#include "model/depth.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/table.h"
#include "model/params.h"

namespace thimble {

namespace {

constexpr double kBatchPower = 0.383;  // nanochat's exponent of the batch size
constexpr std::int64_t kHiddenMultiple = 64;

double three_digits(double value) {
  return std::stod(fmt::format("{:.3g}", value));
}

// Derives the settings from the resolved preset.
class DepthScaler {
 public:
  DepthScaler(ConfigBuilder& settings, std::int64_t depth)
      : settings_(settings), preset_(resolved(settings.before_user())), depth_(depth) {}

  std::vector<std::string> apply() {
    derive_sizes();
    derive_batch();
    derive_rates();
    return std::move(lines_);
  }

 private:
  const ModelConfig& model() const { return settings_.current().model; }

  // Sets the key unless the user did, and adds a line about it either way.
  void derive(std::string_view key, const KeyValue& value, const std::string& why) {
    if (settings_.given(key)) {
      lines_.push_back(
          fmt::format("{} = {}: given", key, value_text(find_key(key)->get(settings_.current()))));
      return;
    }
    settings_.derive(key, value);
    lines_.push_back(fmt::format("{} = {}: {}", key, value_text(value), why));
  }

  void derive_sizes() {
    const ModelConfig& from = preset_.model;
    const std::int64_t head_dim = settings_.given("head_dim") ? model().head_dim : from.head_dim;
    const std::int64_t group = from.heads / from.kv_heads, unit = head_dim * group;
    derive("layers", depth_, "the depth");
    if (from.unet_skips && model().layers < 2) derive("unet_skips", false, "needs at least two layers");
    const double width = static_cast<double>(depth_ * from.dim) / static_cast<double>(from.layers * unit);
    derive(
        "dim", unit * std::max<std::int64_t>(1, std::llround(width)),
        fmt::format("{} layers x {}/{}, to the nearest multiple of {}", depth_, from.dim, from.layers, unit));
    derive("heads", std::max<std::int64_t>(1, model().dim / head_dim),
           fmt::format("dim {} / head_dim {}", model().dim, head_dim));
    const bool shared = group > 1 && model().heads % group == 0;
    derive("kv_heads", shared ? model().heads / group : model().heads,
           shared ? fmt::format("one per {} heads", group) : "one per head");
    const std::int64_t hidden = model().dim * from.mlp_hidden / from.dim;
    derive("mlp_hidden", (hidden + kHiddenMultiple - 1) / kHiddenMultiple * kHiddenMultiple,
           fmt::format("dim x {}/{}, rounded up to a multiple of {}", from.mlp_hidden, from.dim,
                       kHiddenMultiple));
  }

  void derive_batch() {
    const std::int64_t now = ParamTable(resolved(model())).count(), then = ParamTable(preset_.model).count();
    const double ratio = std::pow(static_cast<double>(now) / static_cast<double>(then), kBatchPower);
    const std::int64_t from = preset_.train.batch_tokens, context = model().context;
    auto tokens = std::llround(static_cast<double>(from) * std::exp2(std::round(std::log2(ratio))));
    tokens = std::max<std::int64_t>(1, tokens / context) * context;
    if (settings_.given("batch_size")) return lines_.push_back("batch_tokens: batch_size is given");
    derive(
        "batch_tokens", tokens,
        fmt::format("{} x ({} / {} parameters)^{}, in powers of two", from,
                    with_unit(static_cast<double>(now)), with_unit(static_cast<double>(then)), kBatchPower));
  }

  void derive_rates() {
    const TrainConfig& train = settings_.current().train;
    const std::int64_t rows = train.batch_size > 0 ? train.batch_size * model().context : train.batch_tokens;
    batch_ratio_ = static_cast<double>(rows) / static_cast<double>(preset_.train.batch_tokens);
    const bool muon = settings_.current().optimizer.uses_muon();
    derive_rate("embed_lr", ParamGroup::embedding, 0.5);
    if (!model().tie_embeddings) derive_rate("head_lr", ParamGroup::head, 0.5);
    derive_rate("matrix_lr", ParamGroup::matrix, muon ? 0 : 1);
    derive_rate("scalar_lr", ParamGroup::scalar, 0);
  }

  // A rate that is derived from an lr given by the user stays derived from it.
  void derive_rate(std::string_view key, ParamGroup group, double width_power) {
    const bool follows_lr = std::get<double>(find_key(key)->get(settings_.current())) == 0;
    if (settings_.given(key) || (follows_lr && settings_.given("lr"))) {
      lines_.push_back(fmt::format("{} = {}: given", key, settings_.current().optimizer.rate(group)));
      return;
    }
    const double from = preset_.optimizer.rate(group);
    const double width = static_cast<double>(preset_.model.dim) / static_cast<double>(model().dim);
    const double factor = std::sqrt(batch_ratio_) * std::pow(width, width_power);
    // Rounded, so that the printed rate is exactly the one used. The preset's own rate is not
    // rounded.
    const double rate = factor == 1 ? from : three_digits(from * factor);
    if (rate != settings_.current().optimizer.rate(group)) settings_.derive(key, rate);
    std::string why = fmt::format("{} x sqrt(batch x {:.3g})", from, batch_ratio_);
    if (width_power == 0.5) why += fmt::format(" x sqrt({}/{})", preset_.model.dim, model().dim);
    if (width_power == 1) why += fmt::format(" x {}/{}", preset_.model.dim, model().dim);
    lines_.push_back(fmt::format("{} = {}: {}", key, rate, why));
  }

  ConfigBuilder& settings_;
  const Config preset_;
  const std::int64_t depth_;
  double batch_ratio_ = 1;
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> apply_depth(ConfigBuilder& settings, std::int64_t depth) {
  check(depth >= 1 && depth <= kMaxDepth, "--depth expects a whole number from 1 to {}, found {}", kMaxDepth,
        depth);
  check(settings.before_user().model.position == PositionKind::rope,
        Hint{"set layers, dim and heads instead"},
        "--depth works only for presets with RoPE (the golf and llama families), not for '{}'",
        settings.preset_name());
  return DepthScaler(settings, depth).apply();
}

}  // namespace thimble
