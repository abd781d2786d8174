// The run folder and the run status.
#include "train/run_folder.h"

#include <algorithm>
#include <utility>

#include "base/files.h"
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
  { StartGuard(folder / "run", interrupt).locked(); }
  EXPECT_TRUE(std::filesystem::exists(folder / "run")) << "the folder existed before";
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
  std::filesystem::remove(folder.last());
  EXPECT_EQ(folder.newest().filename(), "step-100000000.safetensors");
  folder.tidy(100000000);
  EXPECT_EQ(names().size(), 2u) << "none is after the step";
  folder.tidy(99999999);
  EXPECT_EQ(names(), (Names{"step-99999999.safetensors"}));
}

TEST(RunStatus, ConvertsToANameAndBack) {
  const std::pair<RunStatus, std::string_view> all[] = {
      {RunStatus::completed, "completed"},     {RunStatus::wallclock, "wallclock"},
      {RunStatus::early_stop, "early_stop"},   {RunStatus::stopped, "stopped"},
      {RunStatus::interrupted, "interrupted"}, {RunStatus::diverged, "diverged"}};
  for (const auto& [status, name] : all) {
    EXPECT_EQ(name_of(status), name);
    EXPECT_EQ(run_status_from(name), status) << name;
  }
  for (const char* other : {"", "Completed", "unfinished", "paused"})
    EXPECT_FALSE(run_status_from(other)) << other;
}

TEST(RunStatus, IsFinishedIfThereIsNothingToResume) {
  for (const RunStatus status : {RunStatus::completed, RunStatus::wallclock, RunStatus::early_stop})
    EXPECT_TRUE(is_finished(status)) << name_of(status);
  for (const RunStatus status : {RunStatus::stopped, RunStatus::interrupted, RunStatus::diverged})
    EXPECT_FALSE(is_finished(status)) << name_of(status);
}

}  // namespace
}  // namespace thimble
