// Runs started by an earlier version can be resumed. tests/golden/runs contains two, written by the
// commit before update rules had definitions, and stopped after 4 of 6 steps. That version ended at
// the validation losses below.
#include <cmath>
#include <filesystem>
#include <sstream>

#include "base/files.h"
#include "base/json.h"
#include "support/golden.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::earlier_runs_test {
namespace {

namespace fs = std::filesystem;

struct EarlierRun {
  const char* name;
  double val_loss;
};

class EarlierRuns : public testing::TestWithParam<EarlierRun> {};

TEST_P(EarlierRuns, ResumeWithTheSameFinalLoss) {
  const TempFolder folder;
  const fs::path run = folder.path() / "run";
  fs::copy(golden_path("runs") / GetParam().name, run, fs::copy_options::recursive);
  fs::create_hard_link(run / "checkpoints/step-00000004.safetensors", run / "last.safetensors");

  const RunResult result = run_binary({.arguments = {"train", "--resume", run.string(), "-q"}});
  ASSERT_EQ(result.exit_code, 0) << result;

  double val_loss = std::nan("");
  std::istringstream metrics(read_file(run / "metrics.jsonl", 1 << 20));
  for (std::string line; std::getline(metrics, line);) {
    const Json event = parse_json(line, "metrics.jsonl");
    if (event.at("event").as_string() != "validation") continue;
    val_loss = event.at("val_loss").as_double();
  }
  // Other CPU levels sum in another order.
  EXPECT_NEAR(val_loss, GetParam().val_loss, 1e-3 * GetParam().val_loss);
}

INSTANTIATE_TEST_SUITE_P(Of010, EarlierRuns,
                         testing::Values(EarlierRun{"adam", 5.496016049948264},
                                         EarlierRun{"muon_ema", 3.713074393570423}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace thimble::earlier_runs_test
