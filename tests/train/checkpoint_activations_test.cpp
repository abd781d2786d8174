// checkpoint_activations recomputes blocks in backward. It may change memory and time only, not
// results.
#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "train/run_cost.h"
#include "train/tiny_run.h"

namespace thimble {
namespace {

class CheckpointActivations : public TinyRun {
 protected:
  // All training and validation losses in metrics.jsonl, as written.
  std::vector<std::string> losses(const std::string& run) const {
    std::vector<std::string> all;
    std::ifstream file(folder_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const Json event = parse_json(line, "line");
      for (const char* key : {"loss", "train_loss", "val_loss"})
        if (const Json* loss = event.find(key)) all.push_back(loss->dump());
    }
    return all;
  }

  std::vector<float> weights(const std::string& run) const {
    OpenedCheckpoint checkpoint(folder_ / run / "last.safetensors");
    return {checkpoint.model.weights().begin(), checkpoint.model.weights().end()};
  }
};

TEST_F(CheckpointActivations, GivesBitIdenticalLossesAndWeights) {
  for (const std::string dtype : {"f32", "bf16"})
    for (const char* mlp : {"mlp=relu2", "mlp=swiglu"}) {
      const std::vector<std::string> plain = {"dtype=" + dtype, mlp, "dropout=0.1"};
      std::vector<std::string> again = plain;
      again.emplace_back("checkpoint_activations=true");
      const std::string a = "plain-" + dtype + mlp, b = "again-" + dtype + mlp;
      run(request(a, plain));
      run(request(b, again));
      ASSERT_GE(losses(a).size(), 20u);
      EXPECT_EQ(losses(a), losses(b));
      EXPECT_EQ(weights(a), weights(b));
    }
}

TEST_F(CheckpointActivations, UsesLessMemory) {
  const Config plain = config({"layers=6"}), again = config({"layers=6", "checkpoint_activations=true"});
  EXPECT_LT(summarize(again).plan.arena_bytes, summarize(plain).plan.arena_bytes * 7 / 10);
}

TEST_F(CheckpointActivations, CanBeChangedOnResume) {
  run(request("straight"));
  run_until(request("cut"), 7);
  run(resumed("cut", {"checkpoint_activations=true"}));
  EXPECT_EQ(weights("straight"), weights("cut"));
}

}  // namespace
}  // namespace thimble
