// A complete run (data, checkpoints, metrics, records) with a fault injected at every file
// operation.
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "support/every_fault.h"
#include "train/metrics.h"
#include "train/run_folder.h"
#include "train/tiny_run.h"

namespace thimble {
namespace {

namespace fs = std::filesystem;

class RunFaults : public TinyRun {
 protected:
  RunFaults() { folder_.write("text.txt", sample_text().substr(0, 1500)); }

  static std::vector<std::string> settings() {
    return {"layers=1",  "steps=4",        "val_every=2",   "checkpoint_every=1", "keep=1",
            "dtype=f32", "val_tokens=100", "swa_start=0.9", "swa_every=1"};
  }

  void begin(FileOps& ops) const { run(request("run", settings()), Log::nowhere(), &ops); }

  // Like a user: --resume if there is a checkpoint, otherwise a new start.
  void resume(FileOps& ops) const {
    const RunFolder found(ops, folder_ / "run");
    if (found.checkpoints_newest_first().empty()) return begin(ops);
    try {
      run(resumed("run", settings()), Log::nowhere(), &ops);
    } catch (const Error& error) {
      // The fault came after the last checkpoint.
      if (std::string(error.what()).find("is complete") == std::string::npos) throw;
      RunFolder(ops, folder_ / "run").tidy(4);
    }
    expect_every_step_once();
  }

  void expect_every_step_once() const {
    std::string steps;
    std::istringstream lines(folder_.read("run/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const Json event = parse_json(line, "metrics.jsonl");
      if (event.at("event").as_string() == "step") steps += std::to_string(event.at("step").as_int());
    }
    EXPECT_EQ(steps, "1234");
  }

  void expect_survives(int every, std::size_t power_states) const {
    expect_survives_every_fault({.folder = folder_.path(),
                                 .write = [this](FileOps& ops) { begin(ops); },
                                 .again = [this](FileOps& ops) { resume(ops); },
                                 .named = "run",
                                 .grows = {"/metrics.jsonl", "/run.json"},
                                 .may_stay = {"data/.build.json", "data/.lock", "data/.digests"},
                                 .every = every,
                                 .power_states = power_states});
  }
};

TEST_F(RunFaults, ARunResumesAfterSampledFaults) {
  expect_survives(29, 2);
}

TEST_F(RunFaults, FullTierARunResumesAfterAnyFault) {
  expect_survives(1, 6);
}

// Lines are appended in place: earlier lines survive a fault, and an incomplete line is removed on
// resume.
TEST_F(RunFaults, MetricsKeepTheLinesBeforeAFault) {
  const auto add = [&](FileOps& ops, int from) {
    MetricsFile metrics(ops, folder_ / "metrics.jsonl");
    metrics.keep_until(from);
    for (int step = from + 1; step <= 5; ++step) {
      metrics.add(Json::object().set("step", step));
      metrics.flush();
    }
  };
  PosixFileOps real;
  add(real, -1);
  const std::string complete = folder_.read("metrics.jsonl");
  const std::string kept = complete.substr(0, complete.find("{\"step\":3}"));
  ASSERT_LT(kept.size(), complete.size());
  expect_survives_every_fault(
      {.folder = folder_.path(),
       .write = [&](FileOps& ops) { add(ops, 2); },
       .named = "metrics.jsonl",
       .grows = {"metrics.jsonl"},
       .expect_opens = [&] { EXPECT_TRUE(folder_.read("metrics.jsonl").starts_with(kept)); }});
  EXPECT_EQ(folder_.read("metrics.jsonl"), complete);
}

}  // namespace
}  // namespace thimble
