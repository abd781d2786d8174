#include "train/optimizer_choice.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace thimble::optimizer_choice_test {
namespace {

struct Chosen {
  OptimizerConfig optimizer;
  std::int64_t warmup_steps = 0;
  std::string note;
};

Chosen chosen(const char* preset, OptimizerChoice choice, const std::vector<std::string>& given = {}) {
  ConfigBuilder settings;
  settings.preset(preset);
  for (const std::string& assignment : given) settings.set(assignment);
  const std::string note = choose_optimizer(choice, settings);
  const Config config = settings.resolve();
  return {config.optimizer, config.train.warmup_steps, note};
}

TEST(OptimizerChoice, LeavesThePresetAloneUnlessAsked) {
  for (const Preset& preset : all_presets()) {
    ConfigBuilder settings;
    settings.preset(preset.name);
    const Config before = settings.current();
    EXPECT_EQ(choose_optimizer({}, settings), "") << preset.name;
    EXPECT_TRUE(settings.current() == before) << preset.name;
  }
  EXPECT_EQ(chosen("quick", {.name = "muon"}).note, "");
  EXPECT_EQ(chosen("llama", {.name = "adamw"}).note, "");
}

TEST(OptimizerChoice, AdamwReplacesTheRatesOfMuon) {
  const Chosen quick = chosen("quick", {.name = "adamw"});
  EXPECT_FALSE(quick.optimizer.uses_muon());
  for (const ParamGroup group : {ParamGroup::embedding, ParamGroup::matrix, ParamGroup::scalar})
    EXPECT_NEAR(quick.optimizer.rate(group), 0.003, 1e-4);
  EXPECT_EQ(quick.warmup_steps, 50) << "the preset's";
  EXPECT_TRUE(chosen("quick", {}, {"muon_steps=0"}).optimizer == quick.optimizer);
  EXPECT_LT(chosen("golf", {.name = "adamw"}).optimizer.lr, quick.optimizer.lr) << "a larger model";
}

TEST(OptimizerChoice, MuonTrainsTheMatricesOfAnAdamPreset) {
  const Chosen llama = chosen("llama", {.name = "muon"});
  EXPECT_TRUE(llama.optimizer.uses_muon());
  EXPECT_EQ(llama.optimizer.rate(ParamGroup::matrix), 0.02);
  EXPECT_EQ(llama.optimizer.rate(ParamGroup::embedding), 1e-3) << "the preset's";
}

TEST(OptimizerChoice, FineTuningUsesAdamwAtARateThatFollowsTheSize) {
  EXPECT_NEAR(adamw_rate(820'000), 0.003, 1e-4);
  EXPECT_NEAR(adamw_rate(22'000'000), 0.001, 1e-5);
  EXPECT_NEAR(adamw_rate(494'000'000), 0.00035, 1e-5);
  for (const char* preset : {"quick", "golf", "llama", "microgpt", "chat"}) {
    const Chosen tuned = chosen(preset, {.fine_tunes = true});
    EXPECT_FALSE(tuned.optimizer.uses_muon()) << preset;
    for (const ParamGroup group : {ParamGroup::embedding, ParamGroup::matrix, ParamGroup::scalar}) {
      EXPECT_EQ(tuned.optimizer.rate(group), tuned.optimizer.lr) << preset;
      EXPECT_LE(tuned.optimizer.rate(group), 0.001) << preset;
    }
    EXPECT_EQ(tuned.warmup_steps, 20) << preset;
    EXPECT_NE(tuned.note.find("fine-tuning with AdamW, learning rate 0.00"), std::string::npos) << tuned.note;
  }
  EXPECT_EQ(chosen("quick", {.fine_tunes = true}, {"steps=40"}).warmup_steps, 4);
}

TEST(OptimizerChoice, AdaptersUseTwiceTheRateOfTrainingFromRandomWeights) {
  const Chosen adapted = chosen("quick", {.fine_tunes = true}, {"lora_rank=8"});
  EXPECT_FALSE(adapted.optimizer.uses_muon());
  EXPECT_NEAR(adapted.optimizer.rate(ParamGroup::matrix), 0.006, 2e-4);
}

TEST(OptimizerChoice, FineTuningWithMuonUsesATenthOfThePresetsRates) {
  const auto matrices = [](const Chosen& tuned) { return tuned.optimizer.rate(ParamGroup::matrix); };
  const Chosen quick = chosen("quick", {.name = "muon", .fine_tunes = true});
  EXPECT_TRUE(quick.optimizer.uses_muon());
  EXPECT_EQ(matrices(quick), 0.002);
  EXPECT_EQ(quick.optimizer.rate(ParamGroup::embedding), 0.001);
  EXPECT_EQ(matrices(chosen("quick", {.fine_tunes = true}, {"muon_steps=5"})), 0.002) << "asked for by key";
  EXPECT_EQ(matrices(chosen("llama", {.name = "muon", .fine_tunes = true})), 0.002);
}

TEST(OptimizerChoice, KeepsWhatTheUserGave) {
  const Chosen rate = chosen("quick", {.fine_tunes = true}, {"lr=1e-5", "warmup_steps=7"});
  EXPECT_EQ(rate.optimizer.rate(ParamGroup::matrix), 1e-5);
  EXPECT_EQ(rate.optimizer.rate(ParamGroup::embedding), 1e-5);
  EXPECT_EQ(rate.warmup_steps, 7);
  const Chosen matrix = chosen("quick", {.fine_tunes = true}, {"matrix_lr=0.5"});
  EXPECT_EQ(matrix.optimizer.rate(ParamGroup::matrix), 0.5);
  EXPECT_LT(matrix.optimizer.rate(ParamGroup::embedding), 0.001);
  EXPECT_EQ(
      chosen("quick", {.name = "muon", .fine_tunes = true}, {"lr=0.004"}).optimizer.rate(ParamGroup::matrix),
      0.004);
}

TEST(OptimizerChoice, ContradictionsAreErrors) {
  EXPECT_THROW(chosen("quick", {.name = "adamw"}, {"muon_steps=5"}), Error);
  EXPECT_THROW(chosen("quick", {.name = "muon"}, {"muon_steps=0"}), Error);
}

}  // namespace
}  // namespace thimble::optimizer_choice_test
