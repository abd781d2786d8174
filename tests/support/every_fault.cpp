#include "support/every_fault.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "support/faulty_disk.h"

namespace thimble {

namespace {

using Files = SimulatedDisk::Files;
using InjectFault = std::function<void(FaultyDisk& disk, int operation)>;

enum class Leftovers { nothing, debris };  // what a fault may leave of an unfinished write

class EveryFault {
 public:
  explicit EveryFault(const FaultyWriting& writing)
      : writing_(writing), before_(SimulatedDisk::copy_of(writing.folder)) {
    FaultyDisk disk = fresh();
    disk.watch();
    writing_.write(disk);
    EXPECT_EQ(disk.open_handles(), 0u);
    operations_ = disk.operations();
    versions_ = disk.versions();
    for (const auto& [path, content] : before_.files()) versions_[path].insert(content);
    after_ = checked_files();
    // The model of the simulated disk must match the real folder, or the results below mean
    // nothing.
    EXPECT_EQ(keys(disk.known().files()), keys(SimulatedDisk::copy_of(writing.folder).files()));
    for (const auto& [path, content] : after_) EXPECT_FALSE(hidden(path)) << path << " was left behind";
  }

  void run() {
    EXPECT_GT(operations_, 0);
    short_writes();
    inject_each("EIO", Leftovers::nothing,
                [](FaultyDisk& disk, int operation) { disk.fail_at(operation, EIO); });
    inject_each("ENOSPC", Leftovers::nothing,
                [](FaultyDisk& disk, int operation) { disk.fail_at(operation, ENOSPC); });
    inject_each("full", Leftovers::nothing, [](FaultyDisk& disk, int operation) { disk.fill_at(operation); });
    inject_each("dead", Leftovers::debris, [](FaultyDisk& disk, int operation) { disk.die_at(operation); });
    for (int done = 0; done <= operations_ && !testing::Test::HasFailure(); done += writing_.every)
      lose_power(done);
    testing::Test::RecordProperty("operations", operations_);
    testing::Test::RecordProperty("faults", faults_);
    testing::Test::RecordProperty("power_losses", losses_);
  }

 private:
  FaultyDisk fresh() {
    FaultyDisk disk(writing_.folder);
    if (!writing_.exchanges) disk.refuse_exchange();
    return disk;
  }

  static std::vector<std::string> keys(const Files& files) {
    std::vector<std::string> names;
    for (const auto& [path, content] : files) names.push_back(path);
    return names;
  }
  bool is_any(const std::string& path, const std::vector<std::string>& parts) const {
    const std::string name = path.substr(writing_.folder.string().size());
    return std::ranges::any_of(parts, [&](const std::string& part) { return name.find(part) != name.npos; });
  }
  bool hidden(const std::string& path) const {
    return path.substr(writing_.folder.string().size()).find("/.") != std::string::npos;
  }
  Files checked_files() const {
    Files files = SimulatedDisk::copy_of(writing_.folder).files();
    std::erase_if(files, [&](const auto& file) { return is_any(file.first, writing_.grows); });
    return files;
  }

  // Every file has its complete old or new content.
  void expect_whole(Leftovers left) const {
    const Files files = checked_files(), before = before_.files();
    for (const auto& [path, content] : files) {
      if (hidden(path)) {
        EXPECT_TRUE(left == Leftovers::debris || before.contains(path) || is_any(path, writing_.may_stay))
            << path << " was left behind";
        continue;
      }
      const auto known = versions_.find(path);
      EXPECT_TRUE(known != versions_.end() && known->second.contains(content))
          << path << " has unexpected contents of " << content.size() << " bytes";
    }
    for (const auto& [path, content] : before) {
      if (hidden(path) || files.contains(path) || is_any(path, writing_.grows)) continue;
      EXPECT_TRUE(versions_.at(path).contains(std::nullopt)) << path << " is missing";
    }
    if (writing_.expect_opens) writing_.expect_opens();
  }

  void expect_works_next_time() {
    FaultyDisk disk = fresh();
    const auto& write = writing_.again ? writing_.again : writing_.write;
    try {
      write(disk);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "the next attempt fails: " << error.what();
      return;
    }
    const Files files = checked_files();
    for (const auto& [path, content] : after_)
      EXPECT_TRUE(files.contains(path) && files.at(path) == content)
          << path << " differs from the result of a clean run";
    for (const auto& [path, content] : files) {
      if (after_.contains(path) || is_any(path, writing_.may_stay)) continue;
      // A file that was removed before a power loss may have reappeared.
      const auto known = versions_.find(path);
      EXPECT_TRUE(!hidden(path) && known != versions_.end() && known->second.contains(content))
          << path << " was left behind";
    }
  }

  void short_writes() {
    constexpr std::size_t kBytes = 97;
    before_.write_out(writing_.folder);
    FaultyDisk disk = fresh();
    disk.limit_writes(kBytes);
    writing_.write(disk);
    EXPECT_TRUE(checked_files() == after_) << "short writes change the result";
  }

  void inject_each(const char* what, Leftovers left, const InjectFault& inject_fault) {
    for (int operation = 1; operation <= operations_; operation += writing_.every) {
      before_.write_out(writing_.folder);
      FaultyDisk disk = fresh();
      inject_fault(disk, operation);
      try {
        writing_.write(disk);
      } catch (const Error& error) {
        ++faults_;
        EXPECT_NE(std::string(error.what()).find(writing_.named), std::string::npos) << error.what();
      }
      if (disk.operations() < operation) continue;
      SCOPED_TRACE(std::string(what) + " at " + disk.log()[static_cast<std::size_t>(operation) - 1]);
      EXPECT_EQ(disk.open_handles(), 0u);
      expect_whole(left);
      expect_works_next_time();
      if (testing::Test::HasFailure()) return;
    }
  }

  void lose_power(int done) {
    before_.write_out(writing_.folder);
    FaultyDisk disk = fresh();
    disk.lose_power_after(done);
    bool finished = false;
    try {
      writing_.write(disk);
      finished = true;
    } catch (const PowerLoss&) {
    }
    SCOPED_TRACE(done == 0 ? "power lost at the start" : "power lost after " + disk.log().back());
    for (const SimulatedDisk& state : disk.known().some_after_power_loss(writing_.power_states)) {
      ++losses_;
      state.write_out(writing_.folder);
      expect_whole(Leftovers::debris);
      if (finished) {
        for (const auto& [path, content] : after_)
          EXPECT_TRUE(state.content(path) == content) << path << " was not synced";
      }
      expect_works_next_time();
      if (testing::Test::HasFailure()) return;
    }
  }

  const FaultyWriting& writing_;
  SimulatedDisk before_;
  int operations_ = 0, faults_ = 0, losses_ = 0;
  FaultyDisk::Versions versions_;
  Files after_;
};

}  // namespace

void expect_survives_every_fault(const FaultyWriting& writing) {
  EveryFault faults(writing);
  if (!testing::Test::HasFailure()) faults.run();
}

}  // namespace thimble
