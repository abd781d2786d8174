#include "optim/muon.h"

#include <cmath>
#include <random>

#include "base/parallel.h"
#include "config/builder.h"
#include "ops/sums.h"
#include "optim/newton_schulz.h"
#include "optim/optimizer.h"

namespace thimble::muon_test {
namespace {

Config small_config(const std::vector<std::string>& settings) {
  ConfigBuilder builder;
  builder.preset("golf");
  for (const char* setting : {"vocab_size=40", "layers=3", "dim=32", "heads=2", "kv_heads=1", "context=16",
                              "mlp_hidden=80", "batch_tokens=128", "muon_weight_decay=0.1", "muon_dtype=f32"})
    builder.set(setting);
  for (const std::string& setting : settings) builder.set(setting);
  return builder.resolve();
}

std::vector<float> normals(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

struct PlainStep {
  float momentum, rate, grad_scale;
};

// The definition, for one matrix.
void plain_muon(const Param& param, const OptimizerConfig& config, const PlainStep& step, float* w,
                const float* g, float* m) {
  std::vector<float> u(static_cast<std::size_t>(param.count()));
  for (std::size_t i = 0; i < u.size(); ++i) {
    m[i] = step.momentum * m[i] + step.grad_scale * g[i];
    u[i] = step.grad_scale * g[i] + step.momentum * m[i];
  }
  for (std::int64_t r = 0; config.muon_row_norm && r < param.rows; ++r) {
    const std::span<float> row(u.data() + r * param.cols, static_cast<std::size_t>(param.cols));
    const double length = std::max(std::sqrt(ref::sum_of_squares(row)), 1e-7);
    for (float& value : row) value = static_cast<float>(value / length);
  }
  ref::newton_schulz(make_tensor(u.data(), param.rows, param.cols), 5);
  const double scale =
      std::sqrt(std::max(1.0, static_cast<double>(param.rows) / static_cast<double>(param.cols)));
  for (std::size_t i = 0; i < u.size(); ++i)
    w[i] = static_cast<float>(w[i] * (1 - step.rate * config.muon_weight_decay) - step.rate * scale * u[i]);
}

bool muon_trains(const Param& param, const OptimizerConfig& config) {
  return &rule_of(param, config) == &rule::kMuon;
}

// Makes one update of all parameters that Muon trains. Momenta have the layout of the weights.
void update(const ParamTable& params, OptimizerConfig config, const PlainStep& step,
            std::vector<float>& weights, const std::vector<float>& gradients, std::vector<float>& momenta) {
  config.matrix_lr = step.rate;
  config.muon_momentum = step.momentum;
  config.muon_momentum_steps = 0;
  std::vector<RuleParam> own;
  for (const Param& param : params.all())
    if (muon_trains(param, config)) own.push_back({.param = &param, .states = {param.offset}});
  rule::kMuon.make(own, config)
      ->update(Context(), {.grad_scale = step.grad_scale},
               {.weights = weights.data(), .gradients = gradients.data(), .states = {momenta.data()}},
               nullptr, nullptr);
}

TEST(Muon, BatchesMatchTheDefinitionMatrixByMatrix) {
  for (const char* rows : {"muon_row_norm=false", "muon_row_norm=true"}) {
    const Config config = small_config({rows});
    const ParamTable params(config.model);
    auto weights = normals(params.block_size(), 1), momenta = normals(params.block_size(), 2);
    auto expected_weights = weights, expected_momenta = momenta;
    const auto gradients = normals(params.block_size(), 3);
    const PlainStep step{.momentum = 0.9f, .rate = 0.05f, .grad_scale = 0.5f};
    update(params, config.optimizer, step, weights, gradients, momenta);
    int matrices = 0;
    for (const Param& param : params.all()) {
      if (!muon_trains(param, config.optimizer)) continue;
      ++matrices;
      plain_muon(param, config.optimizer, step, expected_weights.data() + param.offset,
                 gradients.data() + param.offset, expected_momenta.data() + param.offset);
    }
    EXPECT_EQ(matrices, 3 * 6);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      ASSERT_NEAR(weights[i], expected_weights[i], 1e-5f) << rows << " at " << i;
      ASSERT_NEAR(momenta[i], expected_momenta[i], 1e-6f) << rows << " at " << i;
    }
  }
}

// On a diagonal matrix the rounds act on each entry independently.
TEST(Muon, PolarExpressAppliesItsPolynomialInEveryRound) {
  // One step more than there are coefficients.
  Config config = small_config({"muon_coefficients=polar", "muon_steps=6"});
  config.optimizer.muon_weight_decay = 0;
  constexpr double k[6][3] = {{8.156554524902461, -22.48329292557795, 15.878769915207462},
                              {4.042929935166739, -2.808917465908714, 0.5000178451051316},
                              {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
                              {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
                              {2.3465413258596377, -1.7097828382687081, 0.42323551169305323},
                              {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}};
  const ParamTable params(config.model);
  const ParamView square = params.view(Role::query);
  ASSERT_EQ(square.rows, square.cols);
  const std::vector<double> values = {1, 0.5, 0.1, 0.01, 0.003};
  std::vector<float> weights(static_cast<std::size_t>(params.block_size())), gradients = weights,
                                                                             momenta = weights;
  double norm = 0;
  const auto at = [&](std::size_t i) {
    return static_cast<std::size_t>(square.offset) + i * static_cast<std::size_t>(square.cols + 1);
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    gradients[at(i)] = static_cast<float>(values[i]);
    norm += values[i] * values[i];
  }
  update(params, config.optimizer, {.momentum = 0, .rate = 1, .grad_scale = 1}, weights, gradients, momenta);
  for (std::size_t i = 0; i < values.size(); ++i) {
    double x = values[i] / std::sqrt(norm);
    for (const auto& [a, b, c] : k) x = a * x + b * x * x * x + c * std::pow(x, 5);
    EXPECT_NEAR(-weights[at(i)], x, 1e-4) << values[i];
    EXPECT_NEAR(x, 1, 0.2) << values[i] << ": Polar Express converges";
  }
}

TEST(Muon, WithoutIterationsTheUpdateIsTheNormalizedMomentum) {
  for (const char* dtype : {"muon_dtype=f32", "muon_dtype=bf16"}) {
    Config config = small_config({"muon_coefficients=none", dtype});
    config.optimizer.muon_weight_decay = 0;
    const ParamTable params(config.model);
    std::vector<float> weights(static_cast<std::size_t>(params.block_size())), momenta = weights;
    const auto gradients = normals(params.block_size(), 3);
    update(params, config.optimizer, {.momentum = 0, .rate = 1, .grad_scale = 1}, weights, gradients,
           momenta);
    for (const Param& param : params.all()) {
      if (!muon_trains(param, config.optimizer)) continue;
      const auto g = param.in(std::span<const float>(gradients)),
                 w = param.in(std::span<const float>(weights));
      const double shape = static_cast<double>(param.rows) / static_cast<double>(param.cols);
      const double scale = std::sqrt(std::max(1.0, shape)) / std::sqrt(ref::sum_of_squares(g));
      for (std::size_t i = 0; i < w.size(); ++i)
        ASSERT_NEAR(w[i], -scale * static_cast<double>(g[i]), 1.0 / 128 * scale * std::abs(g[i]))
            << param.name << " " << dtype;
    }
  }
}

// Products of factors rounded to bf16 keep about two digits.
TEST(Muon, Bf16IsCloseToF32) {
  const auto updated = [](const char* dtype) {
    const Config config = small_config({dtype});
    const ParamTable params(config.model);
    auto weights = normals(params.block_size(), 1), momenta = normals(params.block_size(), 2);
    update(params, config.optimizer, {.momentum = 0.9f, .rate = 0.05f, .grad_scale = 1}, weights,
           normals(params.block_size(), 3), momenta);
    return weights;
  };
  const auto exact = updated("muon_dtype=f32"), rounded = updated("muon_dtype=bf16");
  for (std::size_t i = 0; i < exact.size(); ++i) ASSERT_NEAR(exact[i], rounded[i], 0.05 * 0.03) << i;
}

TEST(Muon, BitsDoNotDependOnThreadsOrSizes) {
  const Config config = small_config({"muon_row_norm=true", "muon_coefficients=polar"});
  const ParamTable params(config.model);
  const auto gradients = normals(params.block_size(), 3);
  const Context context;
  const auto updated = [&](int threads, UpdateSizes* sizes) {
    set_threads(threads);
    Optimizer optimizer(params, config.optimizer);
    auto weights = normals(params.block_size(), 1), copy = gradients;
    optimizer.update(context, 0, 1, weights, copy, sizes);
    return weights;
  };
  const int threads = max_threads();
  const auto one = updated(1, nullptr);
  UpdateSizes sizes;
  EXPECT_EQ(one, updated(1, &sizes));
  EXPECT_EQ(one, updated(3, nullptr));
  set_threads(threads);

  const auto before = normals(params.block_size(), 1);
  for (ParamGroup group : {ParamGroup::embedding, ParamGroup::matrix, ParamGroup::scalar}) {
    double change = 0, size = 0;
    for (const Param& param : params.all())
      for (std::int64_t i = param.offset; param.group == group && i < param.offset + param.count(); ++i) {
        const auto at = static_cast<std::size_t>(i);
        change += std::pow(static_cast<double>(before[at]) - static_cast<double>(one[at]), 2);
        size += std::pow(static_cast<double>(before[at]), 2);
      }
    EXPECT_NEAR(sizes.of(group).ratio() / std::sqrt(change / size), 1, 1e-5);
  }
  EXPECT_EQ(sizes.of(ParamGroup::head).ratio(), 0) << "tied: no parameters";
}

TEST(Optimizer, ClipsTheGlobalNorm) {
  const Config config = small_config({"muon_steps=0", "clip=0.5", "weight_decay=0"});
  const ParamTable params(config.model);
  const Context context;
  Optimizer optimizer(params, config.optimizer);
  std::vector<float> weights(static_cast<std::size_t>(params.block_size())), gradients = weights;
  const Param& first = params.all().front();
  const auto at = static_cast<std::size_t>(first.offset);
  gradients[at] = 3, gradients[at + 1] = 4;
  EXPECT_DOUBLE_EQ(optimizer.update(context, 0, 1, weights, gradients), 5);
  EXPECT_NEAR(optimizer.state("m", first)[0], 0.1 * 0.3, 1e-7) << "3 becomes 0.3 for a norm of 0.5";
  gradients[at] = INFINITY;
  const auto before = weights;
  EXPECT_FALSE(std::isfinite(optimizer.update(context, 1, 1, weights, gradients)));
  EXPECT_EQ(weights, before);
}

}  // namespace
}  // namespace thimble::muon_test
