// Runs that start from the weights of a model (--init).
#include <algorithm>

#include "base/error.h"
#include "tokenizer/tokenizer_json.h"
#include "train/initial_weights.h"
#include "train/tiny_run.h"

namespace thimble {
namespace {

class Init : public TinyRun {
 protected:
  ModelFile trained() {
    run(request("base", {"steps=3", "val_every=0"}));
    return open_model(folder_ / "base");
  }
};

TEST_F(Init, TakesSettingsAndWeightsFromTheModel) {
  const ModelFile model = trained();
  ConfigBuilder settings;
  settings.preset("quick");
  settings.set("context=32");
  take_model_settings(model, false, settings);
  const Config config = settings.resolve();
  EXPECT_EQ(config.model.layers, 2);
  EXPECT_EQ(config.model.context, 32) << "set by the user";
  std::vector<float> weights(model.weights.size());
  copy_weights(model, config.model, weights);
  EXPECT_EQ(weights, model.weights);
}

TEST_F(Init, RejectsAnotherPresetAndListsEverySetting) {
  const ModelFile model = trained();
  ConfigBuilder settings;
  settings.preset("golf");
  try {
    take_model_settings(model, true, settings);
    FAIL();
  } catch (const Error& error) {
    const std::string what = error.what();
    for (const char* part : {"layers is 2, the preset has 9", "mlp is swiglu, the preset has relu2",
                             "dim is 32", "unet_skips is false"})
      EXPECT_NE(what.find(part), std::string::npos) << part << "\n" << what;
    EXPECT_EQ(what.find("context"), std::string::npos) << "may differ: " << what;
  }
}

TEST_F(Init, ListsEveryTensorThatDoesNotFit) {
  const ModelFile model = trained();
  ModelConfig other = model.config.model;
  other.layers = 3;
  other.mlp_hidden = 64;
  other.qk_norm = false;
  try {
    check_fits(model, resolved(other));
    FAIL();
  } catch (const Error& error) {
    const std::string what = error.what();
    for (const char* part : {"model.layers.2.self_attn.q_proj.weight is missing",
                             "model.layers.0.mlp.up_proj.weight is [48, 32], expected [64, 32]",
                             "model.layers.1.self_attn.q_norm.weight is not part of the new model"})
      EXPECT_NE(what.find(part), std::string::npos) << part << "\n" << what;
  }
}

// The same number of tokens but with other texts, so the embedding rows would be meaningless.
TEST_F(Init, RejectsAnotherTokenizer) {
  const ModelFile model = trained();
  check_same_tokens(model, *load_tokenizer("bytes"));
  check_same_tokens(model, *make_bytes_tokenizer({"<s>"}));  // only a special token differs
  try {
    check_same_tokens(model, *load_tokenizer("bytes:chat"));
    FAIL();
  } catch (const Error& error) {
    const std::string what = error.what();
    for (const char* part : {"252 tokens differ",
                             "the first is id 5, \"\\u0004\" in the model and \"\\u0000\" in the tokenizer"})
      EXPECT_NE(what.find(part), std::string::npos) << part << "\n" << what;
  }
}

TEST_F(Init, ARunStartsFromTheGivenWeights) {
  const ModelFile model = trained();
  TrainRequest tuned = request("tuned", {"lr=0", "steps=2"});
  tuned.config.optimizer.lr = 1e-12;
  tuned.config.optimizer.matrix_lr = 1e-12;
  tuned.initial_weights = weights_of(model);
  run(tuned);
  const ModelFile after = open_model(folder_ / "tuned");
  for (std::size_t i = 0; i < after.weights.size(); ++i)
    ASSERT_NEAR(after.weights[i], model.weights[i], 1e-9) << i;
}

TEST_F(Init, TheCheckpointOfStep0HasNoOptimizerStateAndResumesToTheSameBytes) {
  const ModelFile model = trained();
  for (const char* setting : {"patience=0", "ema_decay=0.9", "swa_start=0.9"}) {
    const auto tuned = [&](const std::string& name) {
      TrainRequest made = request(name + setting, {"steps=6", setting});
      made.initial_weights = weights_of(model);
      return made;
    };
    run(tuned("straight"));
    TrainRequest killed = tuned("killed");
    killed.clock = []() -> double { throw Error("killed in the first step"); };
    EXPECT_THROW(run(killed), Error);
    const std::string name = std::string("killed") + setting;
    const SafetensorsFile file = SafetensorsFile::open(folder_ / name / "best.safetensors");
    for (const SafetensorsEntry& entry : file.entries())
      EXPECT_FALSE(entry.name.starts_with(kOptimizerPrefix)) << entry.name;
    EXPECT_EQ(open_model(folder_ / name).weights, model.weights);
    EXPECT_EQ(run(again(tuned("killed"))).status, RunStatus::completed);
    EXPECT_EQ(last(std::string("straight") + setting), last(name)) << setting;
  }
}

TEST_F(Init, Step0IsTheBestIfTrainingMakesTheModelWorse) {
  const ModelFile model = trained();
  TrainRequest tuned = request("tuned", {"steps=6", "val_every=3", "keep=1"});
  tuned.config.optimizer.lr = tuned.config.optimizer.matrix_lr = 10;
  tuned.initial_weights = weights_of(model);
  const TrainResult result = run(tuned);
  EXPECT_EQ(result.best_step, 0);
  EXPECT_LT(result.best_val_loss, result.val_loss);
  EXPECT_EQ(open_model(folder_ / "tuned").weights, model.weights)
      << "opening a run folder opens its best checkpoint";
}

}  // namespace
}  // namespace thimble
