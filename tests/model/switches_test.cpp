// Every switch of the golf family: gradients match finite differences, the CPU matches the
// reference backend, and each switch computes what its definition requires.
#include "model/switches.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "graph/program.h"
#include "model/params.h"
#include "ops/rope.h"
#include "ops/table.h"

namespace thimble::switches_test {
namespace {

using Doubles = std::vector<double>;

// A model in double precision, computed by the reference backend.
class DoubleModel {
 public:
  DoubleModel(const ModelConfig& config, std::span<const float> weights)
      : config_(config),
        params_(config),
        weights(weights.begin(), weights.end()),
        rows_(switch_rows(config)),
        row_weight_(rows_.weight.begin(), rows_.weight.end()),
        graph_(record_gpt(config, params_,
                          {.mode = Mode::training, .rows = rows_.count(), .dtype = DType::f64})),
        program_(std::move(graph_.tape), {.training = true, .recompute = false, .keep = {graph_.nats}},
                 context_, reference_backend()) {
    gradients.resize(this->weights.size());
    bind_rows();
    bind_turns();
    for (const auto& [value, view] : graph_.parameters) {
      program_.bind(value, make_tensor(&this->weights[at(view)], view.rows, view.cols));
      program_.bind_gradient(value, make_tensor(&gradients[at(view)], view.rows, view.cols));
    }
    program_.set_hook([this](std::string_view name, Phase phase, const Tensor& tensor) {
      if (phase != Phase::forward || tensor.dtype != DType::f64) return;
      Doubles& seen = values[std::string(name)];
      seen.clear();
      for (std::int64_t n = 0; n < tensor.rows; ++n)
        seen.insert(seen.end(), tensor.row<double>(n), tensor.row<double>(n) + tensor.cols);
    });
  }

  double run() {
    std::ranges::fill(gradients, 0.0);
    program_.prepare();
    program_.run();
    const Tensor nats = program_.tensor(graph_.nats);
    double loss = 0;
    for (std::int64_t n = 0; n < nats.rows; ++n)
      loss += row_weight_[static_cast<std::size_t>(n)] * *nats.row<double>(n);
    return loss;
  }

  const ParamTable& params() const { return params_; }

 private:
  static std::size_t at(const ParamView& view) { return static_cast<std::size_t>(view.offset); }

  void bind_rows() {
    const auto bind = [&](Value value, std::vector<std::int32_t>& integers) {
      if (value) program_.bind(value, make_tensor(integers.data(), std::ssize(integers), 1));
    };
    bind(graph_.token, rows_.token), bind(graph_.token_order, rows_.token_order);
    bind(graph_.bucket, rows_.bucket), bind(graph_.bucket_order, rows_.bucket_order);
    bind(graph_.previous, rows_.previous), bind(graph_.position, rows_.position);
    bind(graph_.first, rows_.first), bind(graph_.target, rows_.target);
    program_.bind(graph_.weight, make_tensor(row_weight_.data(), rows_.count(), 1));
  }

  void bind_turns() {
    const auto bind = [&](Value value, bool local, Doubles& turns) {
      if (!value) return;
      std::vector<float> narrow(static_cast<std::size_t>(config_.context * config_.rope_dims));
      fill_rotations(make_tensor(narrow.data(), config_.context, config_.rope_dims),
                     rope_frequencies(config_, local), static_cast<int>(config_.rope_direction));
      turns.assign(narrow.begin(), narrow.end());
      program_.bind(value, make_tensor(turns.data(), config_.context, config_.rope_dims));
    };
    bind(graph_.turns, false, turns_);
    bind(graph_.local_turns, true, local_turns_);
  }

  Context context_;
  ModelConfig config_;
  ParamTable params_;

 public:
  Doubles weights, gradients;
  std::map<std::string, Doubles> values;  // activations of the last run, by name

 private:
  Rows rows_;
  Doubles row_weight_, turns_, local_turns_;
  GptGraph graph_;
  Program program_;
};

std::vector<float> random_weights(const ModelConfig& config) {
  const Context context;
  const Model model = random_model(config, context);
  return {model.weights().begin(), model.weights().end()};
}

std::pair<std::size_t, std::size_t> range_of(const Param& param) {
  return {static_cast<std::size_t>(param.offset), static_cast<std::size_t>(param.offset + param.count())};
}

class ModelSwitch : public testing::TestWithParam<Switch> {};

// Central differences along a random direction in each tensor.
TEST_P(ModelSwitch, GradientsMatchFiniteDifferences) {
  constexpr double kStep = 1e-6;
  const ModelConfig config = GetParam().config();
  DoubleModel model(config, random_weights(config));
  model.run();
  const Doubles gradients = model.gradients, before = model.weights;
  std::mt19937 random(2);
  std::normal_distribution<double> normal;
  for (const Param& param : model.params().all()) {
    const auto [begin, end] = range_of(param);
    double expected = 0, length = 0;
    Doubles direction(end - begin);
    for (std::size_t i = begin; i < end; ++i) {
      direction[i - begin] = normal(random) / std::sqrt(static_cast<double>(param.count()));
      expected += gradients[i] * direction[i - begin];
      length += gradients[i] * gradients[i];
    }
    const auto loss_at = [&](double step) {
      for (std::size_t i = begin; i < end; ++i) model.weights[i] = before[i] + step * direction[i - begin];
      return model.run();
    };
    const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    loss_at(0);
    EXPECT_NEAR(slope, expected, 1e-7 * (1 + std::sqrt(length))) << param.name;
  }
}

TEST_P(ModelSwitch, CpuMatchesTheReference) {
  const ModelConfig config = GetParam().config();
  const Context context;
  Model model = random_model(config, context);
  DoubleModel reference(config, model.weights());
  std::vector<float> gradients(model.weights().size());
  EXPECT_NEAR(model.add_gradients(switch_rows(config), gradients, {}) / reference.run(), 1, 1e-5);
  for (const Param& param : model.params().all()) {
    double apart = 0, length = 0;
    const auto [begin, end] = range_of(param);
    for (std::size_t i = begin; i < end; ++i) {
      apart += std::pow(gradients[i] - reference.gradients[i], 2);
      length += std::pow(reference.gradients[i], 2);
    }
    EXPECT_LE(std::sqrt(apart), 2e-4 * std::sqrt(length) + 1e-6) << param.name;
  }
}

TEST_P(ModelSwitch, RecomputationIsBitIdentical) {
  const ModelConfig config = GetParam().config();
  const Context context;
  Model model = random_model(config, context);
  std::vector<float> kept(model.weights().size()), recomputed(kept);
  const double loss = model.add_gradients(switch_rows(config), kept, {});
  EXPECT_EQ(model.add_gradients(switch_rows(config), recomputed, {.recompute = true}), loss);
  EXPECT_EQ(kept, recomputed);
}

INSTANTIATE_TEST_SUITE_P(Model, ModelSwitch, testing::ValuesIn(golf_switches()),
                         [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(Families, ModelSwitch, testing::ValuesIn(family_switches()),
                         [](const auto& info) { return std::string(info.param.name); });

// Computes a block without attention, without the MLP, and without both. Returns by how much the
// results deviate from a sum of independent branches, which is 0 only if neither branch reads the
// other.
double deviation_from_sum(const std::vector<std::string>& settings) {
  std::vector<std::string> one_layer = {"layers=1", "unet_skips=false"};
  one_layer.insert(one_layer.end(), settings.begin(), settings.end());
  const ModelConfig config = small_config("golf", one_layer);
  const std::vector<float> weights = random_weights(config);
  const ParamTable params(config);
  const auto out_without = [&](std::initializer_list<ParamView> zeroed) {
    DoubleModel model(config, weights);
    for (const ParamView& view : zeroed) std::fill_n(model.weights.begin() + view.offset, view.count(), 0.0);
    model.run();
    return model.values.at("blocks.0.out");
  };
  const ParamView attention = params.attn_proj(0), mlp = params.mlp_proj(0);
  const Doubles both = out_without({}), only_mlp = out_without({attention}),
                only_attention = out_without({mlp}), neither = out_without({attention, mlp});
  double largest = 0;
  for (std::size_t i = 0; i < both.size(); ++i)
    largest = std::max(largest, std::abs(both[i] - (only_mlp[i] + only_attention[i] - neither[i])));
  return largest;
}

TEST(ParallelResiduals, AttentionAndMlpReadTheSameStream) {
  EXPECT_LT(deviation_from_sum({"parallel_from=0"}), 1e-12);
  EXPECT_LT(deviation_from_sum({"parallel_from=0", "norm=rms_weight"}), 1e-12);
  EXPECT_GT(deviation_from_sum({}), 1e-3);
}

TEST(LayerOrder, MatchesTheParameterGolfRecords) {
  const auto order = [](std::int64_t first, std::int64_t last, std::int64_t count) {
    ModelConfig config;
    config.layers = 11, config.loop_first = first, config.loop_last = last, config.loop_count = count;
    EXPECT_EQ(std::ssize(layer_order(config, true)), config.passes(true));
    return layer_order(config, true);
  };
  EXPECT_EQ(order(4, 5, 2), (std::vector{0, 1, 2, 3, 4, 5, 4, 5, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(order(3, 5, 2), (std::vector{0, 1, 2, 3, 4, 5, 3, 4, 5, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(order(10, 10, 1), (std::vector{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10}));
  EXPECT_EQ(order(4, 5, 0), (std::vector{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
}

std::vector<float> logits_of(Model& model) {
  return model.score(switch_rows(model.config()), true).logits;
}

// A model without a loop whose layer l is a copy of layer order[l] of `looped`.
Model unrolled(const Model& looped, const std::vector<int>& order, const Context& context) {
  ModelConfig config = looped.config();
  config.layers = std::ssize(order), config.loop_count = 0;
  Model model(config, context);
  for (const Param& param : model.params().all()) {
    const int from = param.layer < 0 ? 0 : order[static_cast<std::size_t>(param.layer)];
    const ParamView view = looped.params().view(param.role, from);
    std::copy_n(looped.weights().begin() + view.offset, param.count(),
                model.weights().begin() + param.offset);
  }
  model.weights_changed();
  return model;
}

TEST(Loop, EqualsTheUnrolledModel) {
  const Context context;
  for (const char* gates : {"skip_gates=false", "skip_gates=true"}) {
    Model looped =
        random_model(small_config("golf", {"loop_first=1", "loop_last=2", "loop_count=2", gates}), context);
    Model plain = unrolled(looped, layer_order(looped.config(), true), context);
    EXPECT_EQ(logits_of(looped), logits_of(plain));
  }
}

TEST(Loop, CanBeTurnedOffAndOn) {
  const Context context;
  Model model = random_model(small_config("golf", {"loop_first=1", "loop_last=2", "loop_count=2"}), context);
  const std::vector<float> looping = logits_of(model);
  model.set_loop(false);
  Model plain = unrolled(model, {0, 1, 2, 3}, context);  // uses the first skips of the looped model
  const std::vector<float> before = logits_of(model);
  EXPECT_EQ(before, logits_of(plain));
  EXPECT_NE(before, looping);
  model.set_loop(true);
  EXPECT_EQ(logits_of(model), looping);
}

}  // namespace
}  // namespace thimble::switches_test
