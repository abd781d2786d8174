// Runs with lora_rank: only the adapters are trained and saved.
#include <algorithm>

#include "base/json.h"
#include "formats/adapters.h"
#include "formats/model_file.h"
#include "support/message_of.h"
#include "train/tiny_run.h"

namespace thimble::adapters_test {
namespace {

class AdapterRun : public TinyRun {
 protected:
  AdapterRun() { run(request("base", {"steps=10"})); }

  TrainRequest adapting(const std::string& name, std::vector<std::string> settings = {}) const {
    settings.insert(settings.end(), {"lora_rank=4", "muon_steps=0", "lr=0.01"});
    return with_base(request(name, settings));
  }
  TrainRequest with_base(TrainRequest request) const {
    request.base = frozen(open_model(folder_ / "base", WeightsAs::stored), Device::cpu,
                          compute_dtype(request.config.train.dtype, Device::cpu));
    return request;
  }
};

TEST_F(AdapterRun, SavesAdaptersOnlyAndNamesTheBase) {
  const TrainResult result = run(adapting("run"));
  EXPECT_EQ(result.status, RunStatus::completed);
  const SafetensorsFile file = SafetensorsFile::open(folder_ / "run/last.safetensors");
  for (const SafetensorsEntry& entry : file.entries())
    EXPECT_TRUE(entry.name.find(".lora_") != std::string::npos || entry.name.starts_with("thimble."))
        << entry.name;
  EXPECT_TRUE(file.find("model.layers.1.mlp.down_proj.lora_B.weight"));
  EXPECT_TRUE(file.find("optim.m.model.layers.1.mlp.down_proj.lora_B.weight"));
  EXPECT_EQ(*file.find_metadata(kBaseKey), std::filesystem::absolute(folder_ / "base/best.safetensors"));
  EXPECT_LT(std::filesystem::file_size(folder_ / "run/last.safetensors"),
            std::filesystem::file_size(folder_ / "base/last.safetensors"));
}

TEST_F(AdapterRun, LearnsAndLeavesTheBaseAsItIs) {
  const std::string before = last("base");
  const TrainResult result = run(adapting("run", {"steps=30"}));
  const ModelFile base = open_model(folder_ / "base"), adapted = open_model(folder_ / "run");
  EXPECT_EQ(last("base"), before);
  EXPECT_EQ(result.best_step, 30) << "better than at step 0, when the adapters do nothing";
  EXPECT_FALSE(adapted.config.lora) << "an opened model has merged adapters";
  ASSERT_EQ(adapted.weights.size(), base.weights.size());
  EXPECT_NE(adapted.weights, base.weights);
}

TEST_F(AdapterRun, OpenedAsFloatsAndAsStoredGivesTheSameLogits) {
  run(adapting("run", {"dtype=f32"}));
  const Context context;
  Model merged = make_model(open_model(folder_ / "run"), context),
        beside = make_model(open_model(folder_ / "run", WeightsAs::stored), context);
  ASSERT_TRUE(beside.adapters());
  const std::vector<std::int32_t> tokens = {60, 61, 62, 63, 64, 65, 66, 67};
  const std::vector<float> a = merged.score(grid_rows(merged.config(), 8, tokens), true).logits;
  const std::vector<float> b = beside.score(grid_rows(merged.config(), 8, tokens), true).logits;
  const double largest = std::ranges::max(a);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5 * largest);
}

TEST_F(AdapterRun, StoppingAndResumingGivesTheSameBytes) {
  for (const std::vector<std::string>& more : {std::vector<std::string>{},
                                               {"lora_dropout=0.2", "checkpoint_activations=true"},
                                               {"ema_decay=0.9"},
                                               {"batch_tokens=256", "micro_batch=3", "lora_targets=q,v"}}) {
    std::filesystem::remove_all(folder_ / "straight");
    std::filesystem::remove_all(folder_ / "stopped");
    run(adapting("straight", more));
    EXPECT_EQ(run_until(adapting("stopped", more), 7).status, RunStatus::stopped);
    EXPECT_EQ(run(again(adapting("stopped", more))).status, RunStatus::completed);
    EXPECT_EQ(last("straight"), last("stopped")) << (more.empty() ? "" : more[0]);
  }
}

TEST_F(AdapterRun, ChangedOrMissingBasesAreErrors) {
  run(adapting("run"));
  const auto opening = [&] { open_model(folder_ / "run"); };
  run(again(request("base", {"steps=14"})));
  EXPECT_NE(message_of(opening).find("contains adapters for another version of "), std::string::npos)
      << message_of(opening);
  std::filesystem::remove_all(folder_ / "base");
  EXPECT_NE(message_of(opening).find(", which does not exist"), std::string::npos) << message_of(opening);
}

TEST_F(AdapterRun, ResumingKeepsRankAndTargets) {
  run_until(adapting("run"), 5);
  TrainRequest other = again(with_base(request("run", {"lora_rank=8", "muon_steps=0", "lr=0.01"})));
  EXPECT_NE(message_of([&] { run(other); }).find("lora_rank: 4 -> 8"), std::string::npos);
}

}  // namespace
}  // namespace thimble::adapters_test
