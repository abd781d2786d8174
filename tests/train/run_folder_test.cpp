// The run folder and the run status.
#include "train/run_folder.h"

#include <algorithm>
#include <utility>

#include "base/files.h"
#include "support/message_of.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

TEST(StartGuard, AFailedStartRemovesTheFolderItLocked) {
  const TempFolder folder;
  const Interrupt interrupt;
  {
    StartGuard start(folder / "run", interrupt);
    std::filesystem::create_directory(folder / "run");
    start.locked();
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
  std::filesystem::create_directory(folder / "run");
  {
    StartGuard start(folder / "run", interrupt);
    start.locked();
    std::filesystem::create_directory(folder / "run/checkpoints");
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "run")) << "the folder existed before";
  EXPECT_TRUE(std::filesystem::is_empty(folder / "run"));
}

TEST(StartGuard, AFailedStartKeepsWhatWasInTheFolder) {
  TempFolder folder;
  const Interrupt interrupt;
  folder.write("run/notes.md", "mine");
  { StartGuard(folder / "run", interrupt).locked(); }
  EXPECT_EQ(folder.read("run/notes.md"), "mine");
}

// Two processes start in the same new folder: the one that fails to get the lock must not delete
// it.
TEST(StartGuard, AFailedStartKeepsAFolderLockedByAnother) {
  TempFolder folder;
  const Interrupt interrupt;
  {
    const StartGuard late(folder / "run", interrupt);
    folder.write("run/metrics.jsonl", "the other's");
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "run" / "metrics.jsonl"));
}

TEST(RunFolder, OrdersCheckpointsByStepWithAnyNumberOfDigits) {
  const TempFolder temporary;
  PosixFileOps ops;
  RunFolder folder(ops, temporary / "run");
  folder.create();
  const auto write = [&](const std::filesystem::path& path) {
    write_file(ops, path, "x", Existing::replace);
  };
  const auto names = [&] {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(temporary / "run" / "checkpoints"))
      all.push_back(entry.path().filename().string());
    std::ranges::sort(all);
    return all;
  };
  using Names = std::vector<std::string>;
  for (std::int64_t step : {99999998, 99999999, 100000000}) folder.publish(step, false, 2, write);
  EXPECT_EQ(names(), (Names{"step-100000000.safetensors", "step-99999999.safetensors"}));
  EXPECT_EQ(folder.checkpoints_newest_first()[0], folder.last());
  std::filesystem::remove(folder.last());
  EXPECT_EQ(folder.checkpoints_newest_first()[0].filename(), "step-100000000.safetensors");
  folder.tidy(100000000);
  EXPECT_EQ(names().size(), 2u) << "none is after the step";
  folder.tidy(99999999);
  EXPECT_EQ(names(), (Names{"step-99999999.safetensors"}));
}

TEST(RunFolder, StartsInNewAndEmptyFoldersOnly) {
  TempFolder folder;
  PosixFileOps ops;
  const auto refusal = [&](const std::string& name) {
    return message_of([&] { RunFolder(ops, folder / name).check_free(true); });
  };
  EXPECT_NO_THROW(RunFolder(ops, folder / "new").check_free(false));
  std::filesystem::create_directories(folder / "empty/checkpoints");
  EXPECT_NO_THROW(RunFolder(ops, folder / "empty").check_free(false));
  for (const char* file : {"config.toml", "run.json", "report.html", "tokenizer.json", "last.safetensors",
                           "data", "data/manifest.json", "checkpoints/best.safetensors", ".notes.tmp"}) {
    const std::string run = std::string("of-") + std::to_string(std::string(file).size()) + file[0];
    folder.write(run + "/" + file, "mine");
    const std::string first = std::filesystem::path(file).begin()->string();
    EXPECT_NE(refusal(run).find("it contains " + first + ","), std::string::npos) << file;
    folder.write(run + "/metrics.jsonl", R"({"loss":1,"event":"x"})");
    EXPECT_NE(refusal(run).find("it contains "), std::string::npos) << file;
  }
}

TEST(RunFolder, StartsAgainAfterAStartThatLeftNoCheckpoint) {
  TempFolder folder;
  PosixFileOps ops;
  for (const char* metrics : {"", R"({"eve)", "{\"event\":\"start\",\"step\":0}\n"}) {
    folder.write("run/metrics.jsonl", metrics);
    folder.write("run/data/data_train_000000.bin", "");
    EXPECT_NO_THROW(RunFolder(ops, folder / "run").check_free(false)) << metrics;
  }
}

TEST(RunFolder, ForceRemovesOnlyWhatTrainingWrote) {
  TempFolder folder;
  PosixFileOps ops;
  RunFolder run(ops, folder / "run");
  run.create();
  run.publish(7, true, 2, [&](const auto& path) { write_file(ops, path, "x", Existing::replace); });
  EXPECT_NE(message_of([&] { run.check_free(false); }).find("already contains a run"), std::string::npos);
  const std::vector<std::string> mine = {"run/.notes.tmp", "run/checkpoints/step-best.safetensors",
                                         "run/events.csv", "run/model.safetensors", "run/notes.md"};
  for (const std::string& file : mine) folder.write(file, "mine");
  for (const char* file : {"run/run.json", "run/report.html", "run/events.out.tfevents.1.host.2",
                           "run/.config.toml.tmp", "run/checkpoints/.step-00000008.safetensors.tmp"})
    folder.write(file, "thimble's");
  EXPECT_NO_THROW(run.check_free(true));
  run.clear();
  EXPECT_EQ(folder.files(), mine);
}

TEST(RunFolder, KnowsTheRunOfACheckpoint) {
  const auto run_of = [](const char* checkpoint) { return RunFolder::run_of(checkpoint).string(); };
  EXPECT_EQ(run_of("runs/a/checkpoints/step-00000035.safetensors"), "runs/a");
  EXPECT_EQ(run_of("checkpoints/step-00000035.safetensors"), ".");
  EXPECT_EQ(run_of("runs/a/last.safetensors"), "runs/a");
  EXPECT_EQ(run_of("best.safetensors"), ".");
  for (const char* other : {"runs/a/model.safetensors", "runs/a/step-00000035.safetensors",
                            "runs/a/checkpoints/step-35.gguf", "step-.safetensors"})
    EXPECT_EQ(run_of(other), "") << other;
}

TEST(RunStatus, ConvertsToANameAndBack) {
  const std::pair<RunStatus, std::string_view> all[] = {
      {RunStatus::completed, "completed"},   {RunStatus::wallclock, "wallclock"},
      {RunStatus::early_stop, "early_stop"}, {RunStatus::target_reached, "target_reached"},
      {RunStatus::stopped, "stopped"},       {RunStatus::interrupted, "interrupted"},
      {RunStatus::diverged, "diverged"}};
  for (const auto& [status, name] : all) {
    EXPECT_EQ(name_of(status), name);
    EXPECT_EQ(run_status_from(name), status) << name;
  }
  for (const char* other : {"", "Completed", "unfinished", "paused"})
    EXPECT_FALSE(run_status_from(other)) << other;
}

TEST(RunStatus, IsFinishedIfThereIsNothingToResume) {
  for (const RunStatus status :
       {RunStatus::completed, RunStatus::wallclock, RunStatus::early_stop, RunStatus::target_reached})
    EXPECT_TRUE(is_finished(status)) << name_of(status);
  for (const RunStatus status : {RunStatus::stopped, RunStatus::interrupted, RunStatus::diverged})
    EXPECT_FALSE(is_finished(status)) << name_of(status);
}

}  // namespace
}  // namespace thimble
