// The harness that all writers are tested with must detect writers that are not careful enough.
#include "support/every_fault.h"

#include <gtest/gtest-spi.h>

#include <fstream>
#include <stdexcept>

#include "base/files.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

namespace fs = std::filesystem;

class EveryFaultFinds : public testing::Test {
 protected:
  EveryFaultFinds() { folder_.write("model", "an older one"); }

  // The failures that the harness reports for a writer.
  std::string failures_of(const std::function<void(FileOps& ops)>& write) const {
    testing::TestPartResultArray failures;
    {
      const testing::ScopedFakeTestPartResultReporter reporter(
          testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
      expect_survives_every_fault({.folder = folder_.path(), .write = write, .named = "model"});
    }
    std::string text;
    for (int i = 0; i < failures.size(); ++i) text += failures.GetTestPartResult(i).message();
    return text;
  }
  bool finds(const std::string& what, const std::function<void(FileOps& ops)>& write) const {
    const std::string failures_text = failures_of(write);
    return failures_text.find(what) != failures_text.npos;
  }

  // Writes a temporary file beside the target and renames it. Each step that may be forgotten can
  // be switched off.
  static void put(FileOps& ops, const fs::path& path, bool syncs, bool syncs_folder, bool cleans) {
    const fs::path temporary = folder_of(path) / ".model.tmp";
    const FileHandle file = ops.open_for_writing(temporary);
    try {
      ops.truncate(file, 0);
      const std::string text = "a newer one";
      auto rest = std::as_bytes(std::span(text));
      while (!rest.empty()) rest = rest.subspan(ops.write(file, rest));
      if (syncs) ops.sync(file);
      ops.rename(temporary, path);
      if (syncs_folder) ops.sync_folder(folder_of(path));
    } catch (...) {
      try {
        if (cleans) ops.remove(temporary);
      } catch (const Error&) {
      }
      ops.close(file);
      throw;
    }
    ops.close(file);
  }

  TempFolder folder_;
};

TEST_F(EveryFaultFinds, NoFaultInAtomicFile) {
  EXPECT_EQ(failures_of(
                [&](FileOps& ops) { write_file(ops, folder_ / "model", "a newer one", Existing::replace); }),
            "");
  const fs::path model = folder_ / "model";
  EXPECT_EQ(failures_of([&](FileOps& ops) { naming(model, [&] { put(ops, model, true, true, true); }); }),
            "");
}

TEST_F(EveryFaultFinds, AFileWrittenInPlace) {
  EXPECT_TRUE(finds("has unexpected contents", [&](FileOps& ops) {
    const FileHandle file = ops.open_for_writing(folder_ / "model");
    try {
      ops.truncate(file, 0);
      ops.write(file, std::as_bytes(std::span("a newer one")));
    } catch (...) {
      ops.close(file);
      throw;
    }
    ops.close(file);
  }));
}

TEST_F(EveryFaultFinds, ARenameBeforeTheDataIsSynced) {
  EXPECT_TRUE(finds("has unexpected contents",
                    [&](FileOps& ops) { put(ops, folder_ / "model", false, true, true); }));
}

TEST_F(EveryFaultFinds, AFolderThatIsNotSynced) {
  EXPECT_TRUE(finds("was not synced", [&](FileOps& ops) { put(ops, folder_ / "model", true, false, true); }));
}

TEST_F(EveryFaultFinds, ALeftoverTemporaryFile) {
  EXPECT_TRUE(
      finds("was left behind", [&](FileOps& ops) { put(ops, folder_ / "model", true, true, false); }));
}

TEST_F(EveryFaultFinds, AHandleThatIsNotClosed) {
  EXPECT_TRUE(finds("open_handles", [&](FileOps& ops) {
    write_file(ops, folder_ / "model", "a newer one", Existing::replace);
    const FileHandle file = ops.open_for_reading(folder_ / "model");
    ops.name_state(file);
    ops.close(file);
  }));
}

TEST_F(EveryFaultFinds, AnErrorThatDoesNotNameTheFile) {
  EXPECT_TRUE(finds("something went wrong", [&](FileOps& ops) {
    try {
      write_file(ops, folder_ / "model", "a newer one", Existing::replace);
    } catch (const Error&) {
      fail("something went wrong");
    }
  }));
}

TEST_F(EveryFaultFinds, AWriterThatBypassesFileOps) {
  EXPECT_THROW(failures_of([&](FileOps& ops) {
                 std::ofstream(folder_ / "other") << "a newer one";
                 ops.rename(folder_ / "other", folder_ / "model");
               }),
               std::logic_error);
}

}  // namespace
}  // namespace thimble
