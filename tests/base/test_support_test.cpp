// Tests of the test tools.
#include <gtest/gtest.h>

#include <cerrno>

#include "base/files.h"
#include "support/golden.h"
#include "support/run_binary.h"
#include "support/simulated_disk.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

using Contents = std::set<std::string>;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

SimulatedDisk disk_with(std::string_view content) {
  SimulatedDisk disk;
  disk.put_folder("/d");
  disk.put("/d/a", content);
  return disk;
}

// All possible contents of the path after a power loss; "nothing" if the file does not exist.
Contents found(const SimulatedDisk& disk, const char* path) {
  Contents contents;
  for (const SimulatedDisk& state : disk.after_power_loss())
    contents.insert(state.content(path).value_or("nothing"));
  return contents;
}

TEST(SimulatedDisk, UnsyncedBytesMayBeLostOrGarbage) {
  SimulatedDisk disk = disk_with("xy");
  const FileHandle file = disk.open_for_writing("/d/a");
  EXPECT_EQ(found(disk, "/d/a"), Contents{"xy"});
  disk.write(file, bytes_of("ab"));
  const std::string zeros(2, '\0');
  for (const std::string& content :
       {std::string("xy"), std::string("ab"), std::string("ay"), std::string("a"), std::string(), zeros,
        "a" + zeros.substr(1), zeros.substr(1) + "b", std::string("##"), std::string("a#")})
    EXPECT_TRUE(found(disk, "/d/a").contains(content)) << content;
  disk.sync(file);
  EXPECT_EQ(found(disk, "/d/a"), Contents{"ab"});
}

TEST(SimulatedDisk, ASyncedFileMayLackItsName) {
  SimulatedDisk disk = disk_with("");
  const FileHandle file = disk.open_for_writing("/d/b");
  disk.write(file, bytes_of("new"));
  disk.sync(file);
  EXPECT_EQ(found(disk, "/d/b"), (Contents{"new", "nothing"}));
  disk.sync_folder("/d");
  EXPECT_EQ(found(disk, "/d/b"), (Contents{"new"}));
}

TEST(SimulatedDisk, UnsyncedRenamesMayBeLost) {
  SimulatedDisk disk = disk_with("A");
  disk.put("/d/b", "B");
  disk.rename("/d/a", "/d/b");
  Contents both;
  for (const SimulatedDisk& state : disk.after_power_loss())
    both.insert(state.content("/d/a").value_or("-") + state.content("/d/b").value_or("-"));
  EXPECT_EQ(both, (Contents{"AB", "-A"}));
  disk.sync_folder("/d");
  EXPECT_EQ(disk.after_power_loss().size(), 1u);
}

TEST(SimulatedDisk, LinkAndRemoveMayBeLostIndependently) {
  SimulatedDisk disk = disk_with("A");
  disk.link("/d/a", "/d/b");
  disk.remove("/d/a");
  Contents both;
  for (const SimulatedDisk& state : disk.after_power_loss())
    both.insert(state.content("/d/a").value_or("-") + state.content("/d/b").value_or("-"));
  EXPECT_EQ(both, (Contents{"A-", "AA", "-A", "--"}));
}

TEST(SimulatedDisk, AFileIsLostWithItsFolder) {
  SimulatedDisk disk = disk_with("");
  disk.make_folder("/d/new");
  const FileHandle file = disk.open_for_writing("/d/new/a");
  disk.sync(file);
  disk.sync_folder("/d/new");
  EXPECT_EQ(found(disk, "/d/new/a"), (Contents{"", "nothing"}));
}

TEST(SimulatedDisk, FailsLimitsWritesAndLosesPowerAsConfigured) {
  SimulatedDisk disk = disk_with("");
  disk.fail_at(2, ENOSPC);
  disk.limit_writes(2);
  disk.lose_power_after(4);
  const FileHandle file = disk.open_for_writing("/d/a");
  EXPECT_THROW(disk.write(file, bytes_of("abc")), FileError);
  EXPECT_EQ(disk.write(file, bytes_of("abc")), 2u);
  disk.sync(file);
  EXPECT_THROW(disk.sync(file), PowerLoss);
  EXPECT_THROW(disk.kind("/d/a"), PowerLoss);
  EXPECT_EQ(disk.content("/d/a"), "ab");
  EXPECT_EQ(disk.log(), (std::vector<std::string>{"write /d/a", "write /d/a", "write /d/a", "sync /d/a"}));
}

// Writers that omit one step. The simulated disk must catch each, or the tests of real writers
// prove nothing.
TEST(SimulatedDisk, CatchesCarelessWriters) {
  auto careless = [](bool sync_file, bool sync_folder) {
    SimulatedDisk disk = disk_with("old");
    const FileHandle file = disk.open_for_writing("/d/tmp");
    disk.write(file, bytes_of("new"));
    if (sync_file) disk.sync(file);
    disk.rename("/d/tmp", "/d/a");
    if (sync_folder) disk.sync_folder("/d");
    return found(disk, "/d/a");
  };
  EXPECT_EQ(careless(true, true), Contents{"new"});
  EXPECT_EQ(careless(true, false), (Contents{"new", "old"}));
  EXPECT_TRUE(careless(false, true).contains("ne"));
  EXPECT_TRUE(careless(false, true).contains("###"));
}

TEST(TempFolder, ListsFilesAndRemovesItself) {
  std::filesystem::path path;
  {
    const TempFolder folder;
    path = folder.path();
    EXPECT_EQ(folder.write("b/.hidden", "x"), path / "b/.hidden");
    folder.write("a", "y");
    EXPECT_EQ(folder.files(), (std::vector<std::string>{"a", "b/.hidden"}));
    EXPECT_EQ(folder.read("a"), "y");
    EXPECT_THROW(folder.read("c"), Error);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Golden, FirstDifferenceShowsBothLines) {
  EXPECT_EQ(first_difference("a\nb\n", "a\nb\n"), "");
  EXPECT_EQ(first_difference("one\ntwo \nthree\n", "one\ntwo\nthree\n"),
            "line 2 differs (byte 7)\n  expected: \"two \\n\"\n  found:    \"two\\n\"");
  EXPECT_EQ(first_difference("one\n", "one\ntwo"),
            "line 2 differs (byte 4)\n  expected: (the text ends here)\n  found:    \"two\"");
  EXPECT_EQ(first_difference("", "x"),
            "line 1 differs (byte 0)\n  expected: (the text ends here)\n  found:    \"x\"");
}

TEST(Golden, ComparesAndUpdatesFiles) {
  const TempFolder folder;
  const auto path = folder / "inner/text.txt";
  const auto missing = matches_golden_file("text\n", path, false);
  EXPECT_FALSE(missing);
  EXPECT_NE(std::string_view(missing.message()).find("THIMBLE_UPDATE_GOLDEN=1"), std::string_view::npos);
  EXPECT_TRUE(matches_golden_file("text\n", path, true));
  EXPECT_TRUE(matches_golden_file("text\n", path, false));
  EXPECT_FALSE(matches_golden_file("other\n", path, false));
  EXPECT_EQ(folder.files(), std::vector<std::string>{"inner/text.txt"});
}

TEST(Golden, SharedFilesAreAddedOnlyIfTheyExist) {
  EXPECT_FALSE(shared_path("no/such/thing"));
  const auto files = golden_and_shared({"README.md", "golf/variables.txt"}, {"no/such/thing"});
  ASSERT_EQ(files, (std::vector{golden_path("README.md"), golden_path("golf/variables.txt")}));
  for (const auto& file : files) EXPECT_TRUE(std::filesystem::is_regular_file(file)) << file;
  EXPECT_EQ(name_of_file(files[1]), "golden_golf_variables_txt");
  EXPECT_EQ(name_of_file(source_folder().parent_path() / "shared/a-b/c.model"), "shared_a_b_c_model");
}

// The only test that is skipped if ../shared does not exist (support/golden.h).
TEST(SharedFiles, AreReadToo) {
  const auto fixtures = shared_path("fixtures");
  if (!fixtures)
    GTEST_SKIP() << "an extra: ../shared does not exist, so no published tokenizer or corpus is tested "
                    "in addition to tests/golden";
  for (const char* part : {"tokenizers", "sentencepiece", "shards", "bpe-train"})
    EXPECT_TRUE(std::filesystem::is_directory(*fixtures / part)) << part;
  EXPECT_TRUE(shared_path("corpora"));
}

}  // namespace
}  // namespace thimble
