#include "train/run_plan.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "train/run_cost.h"

namespace thimble::run_plan_test {
namespace {

// A machine of so many floating-point operations per second, which small models use badly.
std::function<double(const Config&)> machine(double flops) {
  return [flops](const Config& config) {
    const Summary summary = summarize(config);
    const auto parameters = static_cast<double>(summary.parameters);
    const double work = summary.training_flops_per_token * static_cast<double>(config.train.batch_tokens);
    return 1e-3 + work / flops * (1 + 1e6 / parameters);
  };
}

constexpr double kTwoCores = 4e11, kSlow = 2e10, kGpu = 2e14;

PlanFacts facts(double bytes, double minutes, double flops = kTwoCores) {
  return {.train_bytes = 0.9 * bytes,
          .val_bytes = 0.1 * bytes,
          .difficulty = 2.4,
          .seconds = 60 * minutes,
          .gpu = flops >= kGpu,
          .step_seconds = machine(flops)};
}

struct Planned {
  Config config;
  RunLength length;
  double parameters = 0;
};

Planned planned(const PlanFacts& known, const std::vector<std::string>& given = {},
                const char* preset = "quick") {
  ConfigBuilder settings;
  settings.preset(preset);
  for (const std::string& assignment : given) settings.set(assignment);
  const auto tokenizer = planned_tokenizer(known);
  settings.derive("vocab_size", std::int64_t{tokenizer ? tokenizer->vocab_size : 257});
  choose_model(known, settings);
  Planned result;
  result.length = choose_length(known, false, settings);
  result.config = settings.resolve();
  result.parameters = static_cast<double>(summarize(result.config).parameters);
  return result;
}

struct Situation {
  double bytes, minutes, flops;
};

class EverySituation : public testing::TestWithParam<Situation> {};

TEST_P(EverySituation, GivesARunThatFitsTheTimeAndTheText) {
  const Situation& s = GetParam();
  const PlanFacts known = facts(s.bytes, s.minutes, s.flops);
  const Planned plan = planned(known);
  const TrainConfig& train = plan.config.train;
  EXPECT_GE(train.steps, 1);
  EXPECT_LE(plan.length.seconds, 60 * s.minutes * 1.01 + 1);
  if (plan.length.fills_time) {
    EXPECT_GE(plan.length.seconds, 60 * s.minutes * 0.9);
  }
  EXPECT_LE(plan.length.epochs, 17);
  EXPECT_LE(static_cast<double>(train.batch_tokens), std::max(64.0, known.train_bytes / 16))
      << "a batch of a text";
  EXPECT_LE(static_cast<double>(plan.config.model.context), std::max(16.0, known.train_bytes / 4));
  EXPECT_EQ(train.batch_tokens % plan.config.model.context, 0);
  EXPECT_GE(train.val_every, 1);
  EXPECT_LE((train.steps + train.val_every - 1) / train.val_every, 10);
  EXPECT_LT(train.warmup_steps, std::max<std::int64_t>(2, train.steps / 2));
  if (plan.length.epochs >= 4) {
    EXPECT_GT(plan.config.optimizer.weight_decay, 0) << plan.length.epochs << " epochs";
    EXPECT_EQ(plan.config.optimizer.weight_decay, plan.config.optimizer.muon_weight_decay);
    EXPECT_GT(plan.config.train.ema_decay, 0);
  }
  EXPECT_EQ(plan.config.model.dropout, 0) << "gains nothing beside decay and averaging";
  EXPECT_GT(train.patience, 0);
  if (plan.length.epochs < 1) {
    EXPECT_EQ(plan.config.optimizer.weight_decay, 0);
    EXPECT_EQ(plan.config.train.ema_decay, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    RunPlan, EverySituation,
    testing::Values(Situation{1e3, 1, kTwoCores}, Situation{1e3, 60, kTwoCores}, Situation{1e5, 1, kSlow},
                    Situation{1e5, 5, kTwoCores}, Situation{1e6, 1, kTwoCores}, Situation{1e6, 5, kSlow},
                    Situation{1e6, 5, kTwoCores}, Situation{1e6, 60, kTwoCores}, Situation{1e6, 5, kGpu},
                    Situation{1e7, 5, kTwoCores}, Situation{1e7, 60, kTwoCores}, Situation{1e9, 1, kSlow},
                    Situation{1e9, 5, kTwoCores}, Situation{1e9, 60, kTwoCores}, Situation{1e9, 60, kGpu}));

TEST(RunPlan, MoreTimeAndAFasterMachineTrainALargerModel) {
  EXPECT_LT(planned(facts(1e9, 1)).parameters, planned(facts(1e9, 60)).parameters);
  EXPECT_LT(planned(facts(1e9, 60, kSlow)).parameters, planned(facts(1e9, 60)).parameters);
  EXPECT_LT(planned(facts(1e9, 5)).parameters, planned(facts(1e9, 5, kGpu)).parameters);
}

TEST(RunPlan, MoreTextGetsALargerVocabulary) {
  const auto tokens = [](double bytes) {
    const auto spec = planned_tokenizer(facts(bytes, 5));
    return spec ? spec->vocab_size : 0;
  };
  EXPECT_EQ(tokens(1e3), 0) << "bytes";
  EXPECT_GT(tokens(8e3), 0);
  EXPECT_LT(tokens(8e3), tokens(3e4));
  EXPECT_LT(tokens(3e4), tokens(1e6));
}

TEST(RunPlan, ExpectsALowerLossFromMoreTime) {
  const auto expected = [](double minutes) {
    const PlanFacts known = facts(1e8, minutes);
    return expected_loss(known, planned(known).config).bits_per_byte;
  };
  EXPECT_GT(expected(1), expected(5));
  EXPECT_GT(expected(5), expected(60));
}

TEST(RunPlan, KeepsWhatTheUserGaveAndAdaptsTheRest) {
  const PlanFacts known = facts(1e6, 5);
  const Planned wide = planned(known, {"dim=320", "heads=5"});
  EXPECT_EQ(wide.config.model.dim, 320);
  EXPECT_EQ(wide.config.model.heads, 5);
  EXPECT_EQ(wide.config.model.mlp_hidden, 960) << "follows the width";
  EXPECT_LE(wide.length.seconds, 303);

  const Planned fixed = planned(known, {"steps=70", "dropout=0.45", "batch_tokens=512"});
  EXPECT_EQ(fixed.config.train.steps, 70);
  EXPECT_EQ(fixed.config.train.batch_tokens, 512);
  EXPECT_EQ(fixed.config.model.dropout, 0.45);
  EXPECT_LT(fixed.length.seconds, 300);

  const Planned passes = planned(known, {"epochs=2"});
  EXPECT_EQ(passes.config.train.epochs, 2);
  EXPECT_EQ(passes.config.train.steps, 0);
  EXPECT_NEAR(passes.length.epochs, 2, 0.1);
}

TEST(RunPlan, RefusesSettingsThatNoModelFits) {
  EXPECT_THROW(planned(facts(1e6, 5), {"heads=7", "kv_heads=2"}), Error);
}

TEST(RunPlan, TheLengthAloneKeepsTheRecipeOfThePreset) {
  ConfigBuilder settings;
  settings.preset("chat");
  const Config before = settings.current();
  const RunLength length = choose_length(facts(1e6, 5), true, settings);
  const Config after = settings.resolve();
  EXPECT_EQ(after.train.steps, length.steps);
  EXPECT_NE(after.train.steps, before.train.steps);
  EXPECT_EQ(after.model.dropout, before.model.dropout);
  EXPECT_EQ(after.model.dim, before.model.dim);
  EXPECT_EQ(after.train.warmup_steps, before.train.warmup_steps);
  EXPECT_EQ(after.optimizer.matrix_lr, before.optimizer.matrix_lr);
}

TEST(RunPlan, ValidatesOnAPartIfAllOfItTakesTooLong) {
  EXPECT_EQ(planned(facts(1e6, 5)).config.train.val_tokens, 0);
  EXPECT_GT(planned(facts(1e9, 5)).config.train.val_tokens, 0);
}

TEST(RunPlan, TheTableNamesEveryChoice) {
  const PlanFacts known = facts(1e6, 5);
  ConfigBuilder settings;
  settings.preset("quick");
  settings.set("muon_weight_decay=0.25");
  settings.derive("vocab_size", std::int64_t{1024});
  choose_model(known, settings);
  const RunLength length = choose_length(known, false, settings);
  const std::string table = plan_table(known, length, settings);
  for (const char* what : {"tokenizer", "model", "context", "batch", "steps", "weight decay", "learning rate",
                           "time", "expected"})
    EXPECT_NE(table.find(what), std::string::npos) << what << "\n" << table;
  EXPECT_NE(table.find("given"), std::string::npos) << table;
}

}  // namespace
}  // namespace thimble::run_plan_test
