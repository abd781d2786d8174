// Atomicity of all ways to write a file: every operation is made to fail, and the power is cut
// after each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>

#include "base/files.h"
#include "support/simulated_disk.h"

namespace thimble {
namespace {

constexpr std::string_view kTarget = "/run/model";
constexpr std::string_view kOld = "OLDEST";
constexpr std::string_view kNew = "newer!!";

// One method of writing kNew to kTarget.
struct WriteCase {
  std::string name;
  std::function<void(SimulatedDisk&)> prepare;
  std::function<void(SimulatedDisk&)> act;
  bool refuses = false;
};

void PrintTo(const WriteCase& write_case, std::ostream* out) {
  *out << write_case.name;
}

void write_new(SimulatedDisk& disk) {
  write_file(disk, kTarget, kNew, Existing::refuse);
}
void write_over(SimulatedDisk& disk) {
  write_file(disk, kTarget, kNew, Existing::replace);
}
void publish(SimulatedDisk& disk) {
  publish_link(disk, "/run/steps/2", kTarget);
}
void put_old(SimulatedDisk& disk) {
  disk.put(kTarget, kOld);
}
void put_steps(SimulatedDisk& disk) {
  disk.put_folder("/run/steps");
  disk.put("/run/steps/1", kOld);
  disk.put("/run/steps/2", kNew);
}
void put_old_link(SimulatedDisk& disk) {
  put_steps(disk);
  disk.put_link("/run/steps/1", kTarget);
}

std::vector<WriteCase> all_write_cases() {
  return {
      {"NewFile", [](SimulatedDisk&) {}, write_over},
      {"NewFileRefusing", [](SimulatedDisk&) {}, write_new, true},
      {"NewFileRefusingWithoutLinks", [](SimulatedDisk& disk) { disk.refuse_links(EPERM); }, write_new, true},
      {"Replacing", put_old, write_over},
      {"ReplacingAHardLink", put_old_link, write_over},
      {"ReplacingInShortWrites",
       [](SimulatedDisk& disk) {
         put_old(disk);
         disk.limit_writes(3);
       },
       write_over},
      {"DebrisBeside",
       [](SimulatedDisk& disk) {
         put_old(disk);
         disk.put("/run/.model.tmp", "debris");
       },
       write_over},
      {"DebrisThatIsTheTargetToo",
       [](SimulatedDisk& disk) {
         put_old(disk);
         disk.put_link(kTarget, "/run/.model.tmp");
       },
       write_over},
      {"PublishingALink", put_steps, publish},
      {"PublishingOverALink", put_old_link, publish},
      {"PublishingOverAFile",
       [](SimulatedDisk& disk) {
         put_steps(disk);
         put_old(disk);
       },
       publish},
      {"PublishingAgain",
       [](SimulatedDisk& disk) {
         put_steps(disk);
         disk.put_link("/run/steps/2", kTarget);
         disk.put_link("/run/steps/1", "/run/.model.link");
       },
       publish},
      {"PublishingACopy",
       [](SimulatedDisk& disk) {
         put_old_link(disk);
         disk.refuse_links(EXDEV);
       },
       publish},
  };
}

bool is_temporary(const std::string& path) {
  return path.starts_with("/run/.");
}

class EveryWay : public testing::TestWithParam<WriteCase> {
 protected:
  void SetUp() override {
    before.put_folder("/run");
    GetParam().prepare(before);
    old = before.content(kTarget);
    SimulatedDisk clean = before;
    GetParam().act(clean);
    operations = static_cast<int>(clean.log().size());
    after = clean.files();
  }

  // The target has its old or its new content, and nothing else on the disk has changed.
  void expect_old_or_new(const SimulatedDisk& disk) const {
    const auto content = disk.content(kTarget);
    EXPECT_TRUE(content == old || content == kNew) << (content ? *content : "nothing");
    for (const auto& [path, text] : before.files())
      if (path != kTarget && !is_temporary(path)) {
        EXPECT_EQ(disk.content(path), text) << path;
      }
  }

  // From any state left by a fault, the next attempt succeeds and cleans up.
  void expect_works_next_time(SimulatedDisk disk) const {
    if (!(GetParam().refuses && disk.content(kTarget))) {
      ASSERT_NO_THROW(GetParam().act(disk));
    } else {
      EXPECT_THROW(GetParam().act(disk), Error);
      write_over(disk);
    }
    EXPECT_EQ(disk.files(), after);
  }

  SimulatedDisk before;
  std::optional<std::string> old;
  int operations = 0;
  SimulatedDisk::Files after;
};

INSTANTIATE_TEST_SUITE_P(AtomicFile, EveryWay, testing::ValuesIn(all_write_cases()),
                         [](const auto& write_case) { return write_case.param.name; });

TEST_P(EveryWay, LeavesOnlyTheNewFile) {
  EXPECT_EQ(after.at(std::string(kTarget)), kNew);
  for (const auto& [path, text] : after) EXPECT_FALSE(is_temporary(path)) << path;
}

TEST_P(EveryWay, PowerLossAtAnyPointLeavesTheOldOrTheNewFile) {
  for (int done = 0; done <= operations; ++done) {
    SimulatedDisk disk = before;
    disk.lose_power_after(done);
    bool finished = false;
    try {
      GetParam().act(disk);
      finished = true;
    } catch (const PowerLoss&) {
    }
    EXPECT_TRUE(finished || done < operations);
    const auto states = disk.after_power_loss();
    ASSERT_FALSE(states.empty());
    for (const SimulatedDisk& state : states) {
      SCOPED_TRACE(done == 0 ? "at the start" : "after " + disk.log().back());
      expect_old_or_new(state);
      if (finished) {
        EXPECT_EQ(state.content(kTarget), kNew);
      }
      expect_works_next_time(state);
      if (HasFailure()) return;
    }
  }
}

TEST_P(EveryWay, AnyFailureLeavesTheOldOrTheNewFileAndNoDebris) {
  for (const int code : {EIO, ENOSPC})
    for (const std::size_t limit : {0, 1, 3})
      for (int failing = 1;; ++failing) {
        SimulatedDisk disk = before;
        if (limit > 0) disk.limit_writes(limit);
        disk.fail_at(failing, code);
        bool failed = false;
        try {
          GetParam().act(disk);
        } catch (const FileError& error) {
          failed = true;
          EXPECT_NE(std::string_view(error.what()).find(kTarget), std::string_view::npos) << error.what();
          EXPECT_EQ(error.code(), code);
        }
        if (std::cmp_less(disk.log().size(), failing)) break;
        const std::string& operation = disk.log()[static_cast<std::size_t>(failing) - 1];
        SCOPED_TRACE(operation);
        expect_old_or_new(disk);
        // After publication, only syncing the folder and removing the temporary name can still
        // fail.
        const bool late = operation.starts_with("sync_folder") || operation.starts_with("remove");
        if (failed && !late) {
          EXPECT_EQ(disk.content(kTarget), old);
        }
        if (!failed) {
          EXPECT_EQ(disk.content(kTarget), kNew);
        }
        for (const auto& [path, text] : disk.files())
          EXPECT_TRUE(before.files().contains(path) || !is_temporary(path)) << path;
        EXPECT_EQ(disk.open_handles(), 0u);
        expect_works_next_time(disk);
        if (HasFailure()) return;
      }
}

TEST_P(EveryWay, PermanentDiskFailureLeavesTheOldOrTheNewFile) {
  for (int failing = 1; failing <= operations; ++failing) {
    SimulatedDisk disk = before;
    disk.fail_from(failing, EIO);
    try {
      GetParam().act(disk);
    } catch (const FileError& error) {
      EXPECT_NE(std::string_view(error.what()).find(kTarget), std::string_view::npos) << error.what();
    }
    EXPECT_EQ(disk.open_handles(), 0u);
    for (const SimulatedDisk& state : disk.after_power_loss()) expect_old_or_new(state);
  }
}

TEST_P(EveryWay, ConcurrentWriterDoesNotMixContents) {
  constexpr std::string_view kOther = "other";
  for (const Existing existing : {Existing::replace, Existing::refuse})
    for (int between = 1; between <= operations; ++between) {
      SimulatedDisk disk = before;
      bool ours_succeeded = false, theirs_succeeded = false;
      disk.before(between, [&](SimulatedDisk& same) {
        try {
          write_file(same, kTarget, kOther, existing);
          theirs_succeeded = true;
        } catch (const Error&) {
        }
      });
      try {
        GetParam().act(disk);
        ours_succeeded = true;
      } catch (const Error&) {
      }
      SCOPED_TRACE(fmt::format("before operation {}", between));
      const auto content = disk.content(kTarget);
      EXPECT_TRUE((ours_succeeded && content == kNew) || (theirs_succeeded && content == kOther) ||
                  content == old)
          << content.value_or("nothing");
      if (!old) {
        EXPECT_TRUE(ours_succeeded || theirs_succeeded);
      }
      EXPECT_FALSE(GetParam().refuses && existing == Existing::refuse && ours_succeeded && theirs_succeeded);
      for (const auto& [path, text] : disk.files()) EXPECT_FALSE(is_temporary(path)) << path;
      EXPECT_EQ(disk.open_handles(), 0u);
      if (HasFailure()) return;
    }
}

TEST(AtomicFileFaults, DoesNotDisturbAWriterThatStartsDuringTheWriteAndFinishesLater) {
  for (const bool commits : {true, false})
    for (int between = 1;; ++between) {
      SimulatedDisk disk;
      disk.put_folder("/run");
      put_old(disk);
      std::unique_ptr<AtomicFile> theirs;
      disk.before(between, [&](SimulatedDisk& same) {
        try {
          theirs = std::make_unique<AtomicFile>(same, kTarget, Existing::replace);
          theirs->write("the");
        } catch (const Error&) {  // refused, which is acceptable
        }
      });
      try {
        AtomicFile ours(disk, kTarget, Existing::replace);
        ours.write(kNew);
        if (commits) ours.commit();
      } catch (const Error&) {
      }
      if (std::cmp_less(disk.log().size(), between)) break;
      SCOPED_TRACE(fmt::format("before operation {}", between));
      if (theirs) {
        theirs->write("irs");
        ASSERT_NO_THROW(theirs->commit());
        EXPECT_EQ(disk.content(kTarget), "theirs");
      }
      EXPECT_EQ(disk.files().size(), 1u);
    }
}

TEST(PublishLinkFaults, FallsBackToACopyWithoutHardLinks) {
  for (const int code : {EPERM, EMLINK, EXDEV, ENOTSUP}) {
    SimulatedDisk disk;
    disk.put_folder("/run");
    put_old_link(disk);
    disk.refuse_links(code);
    publish(disk);
    EXPECT_EQ(disk.content(kTarget), kNew);
    write_file(disk, "/run/steps/2", "changed", Existing::replace);
    EXPECT_EQ(disk.content(kTarget), kNew);
  }
}

TEST(MakeFoldersFaults, CreatedFoldersSurviveAPowerLoss) {
  SimulatedDisk disk;
  disk.put_folder("/run");
  make_folders(disk, "/run/a/b");
  write_file(disk, "/run/a/b/model", kNew, Existing::refuse);
  for (const SimulatedDisk& state : disk.after_power_loss()) EXPECT_EQ(state.content("/run/a/b/model"), kNew);
}

}  // namespace
}  // namespace thimble
