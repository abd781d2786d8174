// Full and read-only disks and truncated checkpoints cause clear errors and lose no data.
#include <cerrno>

#include "base/error.h"
#include "formats/model_file.h"
#include "support/message_of.h"
#include "train/tiny_run.h"

namespace thimble {
namespace {

// The real disk, which fails after a given number of bytes: no more writes and, with EROFS, no new
// files.
class BreakingDisk final : public FileOps {
 public:
  BreakingDisk(std::uint64_t bytes, int code) : bytes_left_(bytes), code_(code) {}

  bool broken() const { return broken_; }

  PathKind kind(const Path& path) override { return disk_.kind(path); }
  FileHandle open_for_writing(const Path& path) override {
    if (bytes_left_ == 0 && code_ == EROFS) refuse("open", path);
    return disk_.open_for_writing(path);
  }
  FileHandle open_for_reading(const Path& path) override { return disk_.open_for_reading(path); }
  bool try_lock(const FileHandle& file) noexcept override { return disk_.try_lock(file); }
  NameState name_state(const FileHandle& file) override { return disk_.name_state(file); }
  void truncate(const FileHandle& file, std::uint64_t bytes) override { disk_.truncate(file, bytes); }
  std::size_t write(const FileHandle& file, std::span<const std::byte> bytes) override {
    if (bytes.empty()) return 0;
    if (bytes_left_ == 0) refuse("write", file.path);
    const std::size_t written =
        disk_.write(file, bytes.first(std::min<std::size_t>(bytes.size(), bytes_left_)));
    bytes_left_ -= written;
    return written;
  }
  std::size_t read(const FileHandle& file, std::span<std::byte> bytes) override {
    return disk_.read(file, bytes);
  }
  void sync(const FileHandle& file) override { disk_.sync(file); }
  void close(const FileHandle& file) noexcept override { disk_.close(file); }
  void rename(const Path& from, const Path& to) override { disk_.rename(from, to); }
  void link(const Path& existing, const Path& name) override { disk_.link(existing, name); }
  void remove(const Path& path) override { disk_.remove(path); }
  void sync_folder(const Path& path) override { disk_.sync_folder(path); }
  void make_folder(const Path& path) override {
    if (bytes_left_ == 0 && code_ == EROFS) refuse("make", path);
    disk_.make_folder(path);
  }

 private:
  [[noreturn]] void refuse(std::string_view action, const Path& path) {
    broken_ = true;
    throw FileError(action, path, code_);
  }

  PosixFileOps disk_;
  std::uint64_t bytes_left_;
  int code_;
  bool broken_ = false;
};

class Failures : public TinyRun {};

TEST_F(Failures, AFullDiskIsAClearErrorAndTheRunCanBeResumedLater) {
  const std::vector<std::string> settings = {"checkpoint_every=2", "val_every=5", "steps=10"};
  run(request("straight", settings));
  const std::uint64_t checkpoint = std::filesystem::file_size(folder_ / "straight" / "last.safetensors");
  int failed = 0, resumable = 0;
  for (std::uint64_t budget = 0; budget < 6 * checkpoint; budget += checkpoint * 5 / 7) {
    std::filesystem::remove_all(folder_ / "full");
    BreakingDisk disk(budget, ENOSPC);
    std::string logged;
    const Log log(LogLevel::warning, [&](LogLevel, std::string_view line) { logged += line; });
    try {
      run(request("full", settings), log, &disk);
      EXPECT_FALSE(disk.broken());
      continue;
    } catch (const Error& error) {
      ++failed;
      EXPECT_NE(std::string(error.what()).find("No space left on device"), std::string::npos) << error.what();
    }
    const bool saved = std::filesystem::exists(folder_ / "full" / "last.safetensors");
    resumable += saved;
    EXPECT_EQ(logged.find("with thimble train --resume " + (folder_ / "full").string()) != logged.npos, saved)
        << logged;
    for (const std::string& file : folder_.files())
      EXPECT_EQ(file.find(".tmp"), std::string::npos) << file << " is an incomplete file";
    TrainRequest next = request("full", settings);
    if (saved) {
      EXPECT_NO_THROW(open_model(folder_ / "full" / "last.safetensors"));
      next = again(next);
    }
    EXPECT_EQ(run(next).status, RunStatus::completed);
    EXPECT_EQ(last("straight"), last("full")) << budget;
  }
  EXPECT_GE(failed, 5);
  EXPECT_GE(resumable, 3);
}

TEST_F(Failures, AReadOnlyDiskIsAClearErrorAtTheStart) {
  BreakingDisk disk(0, EROFS);
  try {
    run(request("run"), Log::nowhere(), &disk);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("Read-only file system"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

TEST_F(Failures, ACheckpointTruncatedAtAnyKilobyteIsAClearError) {
  run_until(request("run", {"ema_decay=0.9"}), 2);
  const std::string complete = last("run");
  for (std::size_t size = 0; size < complete.size(); size += 1024) {
    folder_.write("cut.safetensors", complete.substr(0, size));
    try {
      read_checkpoint_head(SafetensorsFile::open(folder_ / "cut.safetensors"));
      FAIL() << "a file of " << size << " bytes was accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("cut.safetensors"), std::string::npos) << error.what();
    }
  }
}

// Damages the checkpoint of a step; `last` and `best` may be the same file.
void truncate_step(const std::filesystem::path& run, int step) {
  std::filesystem::resize_file(run / "checkpoints" / fmt::format("step-{:08}.safetensors", step), 5000);
}

TEST_F(Failures, ADamagedCheckpointIsSkippedForTheNewestIntactOne) {
  const std::vector<std::string> settings = {"checkpoint_every=2", "val_every=2", "keep=9"};
  run(request("straight", settings));
  run_until(request("run", settings), 6);
  ASSERT_TRUE(
      std::filesystem::equivalent(folder_ / "run/best.safetensors", folder_ / "run/last.safetensors"));
  truncate_step(folder_ / "run", 6);
  truncate_step(folder_ / "run", 4);
  std::string logged;
  const Log log(LogLevel::info, [&](LogLevel, std::string_view line) { logged += std::string(line) + "\n"; });
  TrainRequest next = resumed("run", settings);
  next.stop_after = 1;
  EXPECT_EQ(run(next, log).steps, 3);
  EXPECT_NE(logged.find("resuming at step 2 of 20"), std::string::npos) << logged;
  for (const char* file : {"last.safetensors", "step-00000004.safetensors"})
    EXPECT_NE(logged.find(file), std::string::npos) << logged;
  EXPECT_NO_THROW(OpenedCheckpoint(folder_ / "run/last.safetensors"));
  EXPECT_EQ(OpenedCheckpoint(folder_ / "run/best.safetensors").head.state.step, 2) << "the best until then";
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run/checkpoints/step-00000006.safetensors"));
  EXPECT_EQ(run(resumed("run", settings)).status, RunStatus::completed);
  EXPECT_EQ(last("straight"), last("run"));
}

TEST_F(Failures, WithoutAnIntactCheckpointResumingFailsAndChangesNothing) {
  run_until(request("run", {"checkpoint_every=1", "keep=2"}), 2);
  truncate_step(folder_ / "run", 1);
  truncate_step(folder_ / "run", 2);
  const std::string cut = last("run"), metrics = folder_.read("run/metrics.jsonl");
  const std::string message = message_of([&] { run(resumed("run")); });
  EXPECT_NE(message.find("no intact checkpoint"), std::string::npos) << message;
  EXPECT_NE(message.find("step-00000001.safetensors"), std::string::npos) << message;
  EXPECT_EQ(last("run"), cut);
  EXPECT_EQ(folder_.read("run/metrics.jsonl"), metrics);
}

TEST_F(Failures, ADamagedDataJsonIsReportedWithItsName) {
  for (const char* text :
       {"{", "{}", R"({"data": 5})", R"({"data":"a","val_data":"","val_fraction":0,"kind":"x"})"})
    EXPECT_TRUE(
        message_of([&] { DataSettings::from_json(text, "run/data.json"); }).starts_with("run/data.json:"))
        << text;
}

TEST_F(Failures, RejectsATrainingStateOutOfRange) {
  run_until(request("run"), 2);
  std::filesystem::remove(folder_ / "run" / "last.safetensors");
  OpenedCheckpoint checkpoint(folder_ / "run" / "checkpoints" / "step-00000002.safetensors");
  checkpoint.head.state.position.next = 1 << 30;
  checkpoint.write();
  EXPECT_THROW(run(resumed("run")), Error);
  checkpoint.head.state.position.next = 0;
  checkpoint.head.state.averaged = -1;
  checkpoint.write();
  EXPECT_THROW(run(resumed("run")), Error);
}

}  // namespace
}  // namespace thimble
