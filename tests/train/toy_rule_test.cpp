// Defines a toy update rule in this file only. It trains, its state is stored in checkpoints, and
// it can be resumed. docs/design.md shows the same definition.
#include "base/error.h"
#include "optim/adam.h"
#include "optim/update_rule.h"
#include "train/tiny_run.h"

namespace thimble::toy_rule_test {
namespace {

// signum, for matrices: m = beta1 m + (1 - beta1) g,  w -= lr sign(m)
class Signum final : public UpdateRule {
 public:
  Signum(std::vector<RuleParam> params, const OptimizerConfig& config)
      : params_(std::move(params)), config_(config) {}

  void update(const Context&, const RuleStep& step, const RuleMemory& memory, UpdateSizes* sizes,
              Communicator*) override {
    const auto beta = static_cast<float>(config_.beta1);
    for (const RuleParam& param : params_) {
      const std::span<float> w = param.weights(memory), m = param.state(memory, 0);
      const std::span<const float> g = param.gradients(memory);
      std::vector<float> before(w.begin(), w.end());
      const auto rate = static_cast<float>(config_.rate(param.param->group) * step.multiplier);
      for (std::size_t i = 0; i < w.size(); ++i) {
        m[i] = beta * m[i] + (1 - beta) * step.grad_scale * g[i];
        w[i] -= m[i] > 0 ? rate : m[i] < 0 ? -rate : 0;
      }
      if (sizes) sizes->add(param.param->group, before, w);
    }
  }

 private:
  std::vector<RuleParam> params_;
  OptimizerConfig config_;
};

constinit const RuleDefinition kSignum = {
    .name = "signum",
    .title = "Signum",
    .states = {"m"},
    .trains = [](const Param& param, const OptimizerConfig&) { return param.group == ParamGroup::matrix; },
    .make = [](std::vector<RuleParam> params, const OptimizerConfig& config) -> std::unique_ptr<UpdateRule> {
      return std::make_unique<Signum>(std::move(params), config);
    }};

// Listed before Adam, which trains all remaining parameters.
constexpr const RuleDefinition* kRules[] = {&kSignum, &rule::kAdam};

class ToyRule : public TinyRun {
 protected:
  TrainRequest toy(const std::string& run) const {
    TrainRequest toy = request(run, {"steps=40", "val_every=10", "matrix_lr=0.001", "muon_steps=0"});
    toy.rules = kRules;
    return toy;
  }
};

TEST_F(ToyRule, UpdatesItsParametersAndAdamUpdatesTheOthers) {
  const Config tiny = config({"matrix_lr=0.25", "clip=0"});
  const ParamTable params(tiny.model);
  Optimizer optimizer(params, tiny.optimizer, Context(), kRules);
  std::vector<float> weights(static_cast<std::size_t>(params.block_size())), gradients = weights;
  for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] = i % 3 == 0 ? -0.1f : 0.2f;
  optimizer.update(Context(), 0, 0.5, weights, gradients);
  for (const Param& param : params.all()) {
    const bool ours = param.group == ParamGroup::matrix;
    EXPECT_EQ(optimizer.rule_of(param).title, ours ? "Signum" : "Adam") << param.name;
    EXPECT_EQ(optimizer.state("m", param).size(), static_cast<std::size_t>(param.count()));
    EXPECT_EQ(optimizer.state("v", param).empty(), ours);
    for (std::int64_t i = param.offset; ours && i < param.offset + param.count(); ++i)
      ASSERT_EQ(weights[static_cast<std::size_t>(i)], i % 3 == 0 ? 0.125f : -0.125f) << param.name;
  }
}

TEST_F(ToyRule, TrainsAndResumesToTheSameBytes) {
  const TrainResult straight = run(toy("straight"));
  EXPECT_EQ(straight.steps, 40);
  EXPECT_LT(straight.train_loss, 0.8 * std::log(256));
  run_until(toy("stopped"), 17);
  run(again(toy("stopped")));
  EXPECT_EQ(last("straight"), last("stopped"));

  const SafetensorsFile file = SafetensorsFile::open(folder_ / "straight" / "last.safetensors");
  const ParamTable params(read_checkpoint_head(file).config.model);
  for (const Param& param : params.all()) {
    EXPECT_TRUE(file.find("optim.m." + param.name)) << param.name;
    EXPECT_EQ(file.find("optim.v." + param.name) != nullptr, param.group != ParamGroup::matrix) << param.name;
  }
}

// Its checkpoints have no v for matrices, so they cannot be resumed with Adam alone.
TEST_F(ToyRule, OtherRulesRejectItsCheckpoint) {
  run_until(toy("run"), 5);
  TrainRequest other = again(toy("run"));
  other.rules = update_rules();
  EXPECT_THROW(run(other), Error);
}

TEST_F(ToyRule, IsCountedInTheMemoryEstimate) {
  const Config tiny = config({"muon_steps=0"});
  const ParamTable params(tiny.model);
  EXPECT_EQ(optimizer_cost(params, tiny.optimizer).state_bytes, 8 * params.count());
  EXPECT_EQ(optimizer_cost(params, tiny.optimizer, kRules).state_bytes,
            8 * params.count() - 4 * params.count(ParamGroup::matrix));
}

// Every optimizer key must be used: by all rules (common) or by exactly one.
TEST(UpdateRules, EveryOptimizerKeyIsCommonOrBelongsToOneRule) {
  const std::set<std::string_view> common = {"lr", "embed_lr", "head_lr", "matrix_lr", "scalar_lr", "clip"};
  for (const Key& key : all_keys()) {
    if (key.part != ConfigPart::optimizer) continue;
    const auto readers = std::ranges::count_if(update_rules(), [&](const RuleDefinition* rule) {
      return std::ranges::find(rule->keys, key.name) != rule->keys.end();
    });
    EXPECT_EQ(readers, common.contains(key.name) ? 0 : 1) << key.name;
  }
  for (const RuleDefinition* rule : update_rules())
    for (const std::string_view name : rule->keys) EXPECT_TRUE(find_key(name)) << rule->name << ": " << name;
}

}  // namespace
}  // namespace thimble::toy_rule_test
