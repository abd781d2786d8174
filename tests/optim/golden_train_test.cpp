// Compares twenty optimizer steps with the published training code in float32.
#include <cmath>

#include "base/json.h"
#include "config/builder.h"
#include "formats/safetensors.h"
#include "formats/weights_file.h"
#include "model/model.h"
#include "optim/optimizer.h"
#include "support/golden.h"

namespace thimble {
namespace {

Config golf_config(const Json& golf) {
  ConfigBuilder settings;
  settings.preset("golf");
  const auto set = [&](const char* key, const Json& value) {
    settings.set(fmt::format("{}={}", key, value.dump()));
  };
  const std::int64_t dim = golf.at("model_dim").as_int(), head = dim / golf.at("num_heads").as_int();
  set("vocab_size", golf.at("vocab_size"));
  set("layers", golf.at("num_layers"));
  set("dim", golf.at("model_dim"));
  set("heads", golf.at("num_heads"));
  set("kv_heads", golf.at("num_kv_heads"));
  set("head_dim", head);
  set("rope_dims", head);
  set("mlp_hidden", dim * golf.at("mlp_mult").as_int());
  set("embed_lr", golf.at("embed_lr"));
  set("scalar_lr", golf.at("scalar_lr"));
  set("matrix_lr", golf.at("matrix_lr"));
  set("muon_momentum", golf.at("momentum"));
  set("muon_momentum_steps", 0);
  settings.set("muon_dtype=f32");
  if (const Json* decay = golf.find("weight_decay")) {
    set("weight_decay", *decay);
    set("muon_weight_decay", *decay);
    set("bigram_buckets", golf.at("bigram_vocab_size"));
    set("bigram_dim", golf.at("bigram_dim"));
    settings.set("smear_gate=true");
  }
  return settings.resolve();
}

std::vector<std::int32_t> integers(const SafetensorsFile& file, std::string_view name) {
  std::vector<std::int64_t> wide(static_cast<std::size_t>(file.at(name).count()));
  file.read_i64(name, wide);
  return {wide.begin(), wide.end()};
}

void expect_same_training(std::string_view name) {
  const SafetensorsFile file = SafetensorsFile::open(golden_path(name));
  const Config config = golf_config(parse_json(*file.find_metadata("config"), name));
  const Context context;
  Model model(config.model, context);
  read_state_dict(file, model.params(), "init.", model.weights(),
                  [](std::string_view tensor) { return !tensor.starts_with("init."); });
  Optimizer optimizer(model.params(), config.optimizer);

  const auto inputs = integers(file, "inputs"), targets = integers(file, "targets");
  std::vector<float> losses(static_cast<std::size_t>(file.at("losses").count()));
  file.read_f32("losses", losses);
  const std::size_t batch = inputs.size() / losses.size();
  std::vector<float> gradients(model.weights().size());
  for (std::size_t step = 0; step < losses.size(); ++step) {
    const Rows rows =
        grid_rows(config.model, file.at("inputs").dims[2], std::span(inputs).subspan(step * batch, batch),
                  std::span(targets).subspan(step * batch, batch));
    std::ranges::fill(gradients, 0.0f);
    const double loss = model.add_gradients(rows, gradients, {});
    EXPECT_NEAR(loss / losses[step], 1, 1e-4) << "step " << step;
    optimizer.update(context, static_cast<std::int64_t>(step), 1, model.weights(), gradients);
    model.weights_changed();
  }
  for (const Param& param : model.params().all()) {
    std::vector<float> theirs(static_cast<std::size_t>(param.count()));
    file.read_f32("final." + param.name, theirs);
    double ab = 0, aa = 0, bb = 0;
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      const double a = model.weights()[static_cast<std::size_t>(param.offset) + i], b = theirs[i];
      ab += a * b, aa += a * a, bb += b * b;
    }
    EXPECT_GE(ab / std::sqrt(aa * bb), 0.9999) << param.name;
  }
}

TEST(GoldenTraining, TwentyGolfBaselineStepsGiveTheSameWeights) {
  expect_same_training("golf_baseline_train.safetensors");
}

TEST(GoldenTraining, TwentyGolfPlusStepsGiveTheSameWeights) {
  expect_same_training("golf_plus_train.safetensors");
}

}  // namespace
}  // namespace thimble
