// Tests on the real file system. Faults are tested in file_faults_test.cpp.
#include "base/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "support/temp_folder.h"

namespace thimble {
namespace {

using Names = std::vector<std::string>;

constexpr std::uint64_t kPlenty = 1 << 20;

struct Failure {
  std::string message, hint;

  bool message_has(std::string_view part) const { return message.find(part) != message.npos; }
  bool hint_has(std::string_view part) const { return hint.find(part) != hint.npos; }
};

std::ostream& operator<<(std::ostream& out, const Failure& failure) {
  return out << failure.message << " (hint: " << failure.hint << ")";
}

template <class Act>
Failure failure_of(Act act) {
  try {
    act();
  } catch (const Error& error) {
    return {error.what(), error.hint()};
  }
  return {"no error", ""};
}

class Files : public testing::Test {
 protected:
  TempFolder folder;
  PosixFileOps ops;
};

using AtomicFileTest = Files;
using PublishLink = Files;
using ReadFile = Files;

bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  return std::filesystem::equivalent(a, b);
}

TEST_F(AtomicFileTest, AppearsOnlyWhenCommitted) {
  AtomicFile file(ops, folder / "model", Existing::refuse);
  file.write("hello ");
  file.write(std::string_view());
  file.write(std::as_bytes(std::span("world", 5)));
  EXPECT_EQ(folder.files(), Names{".model.tmp"});
  EXPECT_EQ(file.bytes_written(), 11u);
  file.commit();
  EXPECT_EQ(folder.files(), Names{"model"});
  EXPECT_EQ(folder.read("model"), "hello world");
}

TEST_F(AtomicFileTest, LeavesNothingWithoutCommit) {
  folder.write("model", "old");
  {
    AtomicFile file(ops, folder / "model", Existing::replace);
    file.write("new");
  }
  EXPECT_EQ(folder.files(), Names{"model"});
  EXPECT_EQ(folder.read("model"), "old");
}

TEST_F(AtomicFileTest, ReplacesAFileOnlyIfAllowed) {
  write_file(ops, folder / "model", "first", Existing::refuse);
  const Failure failure = failure_of([&] { write_file(ops, folder / "model", "second", Existing::refuse); });
  EXPECT_EQ(failure.message, (folder / "model").string() + " already exists");
  EXPECT_TRUE(failure.hint_has("--force")) << failure;
  EXPECT_THROW(AtomicFile(ops, folder / "model", Existing::refuse),
               Error);  // checked in the constructor, before any work
  EXPECT_EQ(folder.read("model"), "first");
  write_file(ops, folder / "model", "third", Existing::replace);
  EXPECT_EQ(folder.read("model"), "third");
  EXPECT_EQ(folder.files(), Names{"model"});
}

TEST_F(AtomicFileTest, RefusesATargetCreatedDuringTheWrite) {
  AtomicFile file(ops, folder / "model", Existing::refuse);
  file.write("ours");
  folder.write("model", "theirs");
  const Failure failure = failure_of([&] { file.commit(); });
  EXPECT_TRUE(failure.message_has("already exists") && failure.hint_has("--force")) << failure;
  EXPECT_EQ(folder.read("model"), "theirs");
}

TEST_F(AtomicFileTest, SecondWriterFailsAndDoesNotDisturbTheFirst) {
  AtomicFile first(ops, folder / "model", Existing::replace);
  first.write("first");
  const Failure failure = failure_of([&] { AtomicFile(ops, folder / "model", Existing::replace); });
  EXPECT_TRUE(failure.message_has("model is being written by another writer")) << failure;
  first.write(" whole");
  first.commit();
  EXPECT_EQ(folder.read("model"), "first whole");
  write_file(ops, folder / "model", "second", Existing::replace);  // the lock has been released
  EXPECT_EQ(folder.read("model"), "second");
}

TEST_F(AtomicFileTest, ConcurrentWritersNeverMixContents) {
  constexpr int kWriters = 4, kRounds = 40;
  constexpr std::size_t kBytes = 50'000;
  std::atomic<int> written = 0, mixed = 0;
  std::vector<std::jthread> writers;
  for (int writer = 0; writer < kWriters; ++writer)
    writers.emplace_back([&, writer] {
      for (int round = 0; round < kRounds; ++round) {
        try {
          write_file(ops, folder / "model", std::string(kBytes, static_cast<char>('a' + writer)),
                     Existing::replace);
          ++written;
        } catch (const Error&) {  // locked by another writer
        }
        if (!std::filesystem::exists(folder / "model")) continue;
        const std::string text = read_file(folder / "model", kPlenty);
        if (text != std::string(kBytes, text[0])) ++mixed;
      }
    });
  writers.clear();
  EXPECT_EQ(mixed, 0);
  EXPECT_GE(written, 1);  // how many succeed depends on timing
  EXPECT_EQ(folder.files(), Names{"model"});
}

TEST_F(AtomicFileTest, ExactlyOneOfManyRefusingWritersSucceeds) {
  for (int round = 0; round < 20; ++round) {
    const std::filesystem::path path = folder / fmt::format("model-{}", round);
    std::atomic<int> won = 0;
    std::vector<std::jthread> writers;
    for (int writer = 0; writer < 4; ++writer)
      writers.emplace_back([&] {
        try {
          write_file(ops, path, "whole", Existing::refuse);
          ++won;
        } catch (const Error&) {
        }
      });
    writers.clear();
    EXPECT_EQ(won, 1);
  }
  EXPECT_EQ(folder.files().size(), 20u);
}

TEST_F(AtomicFileTest, ReusesTheTemporaryFileOfAKilledWriter) {
  folder.write(".model.tmp", "a long leftover of a killed writer");
  write_file(ops, folder / "model", "new", Existing::refuse);
  EXPECT_EQ(folder.files(), Names{"model"});
  EXPECT_EQ(folder.read("model"), "new");
}

TEST_F(AtomicFileTest, LeftoverThatIsALinkDoesNotDamageTheLinkedFile) {
  folder.write("precious", "precious");
  std::filesystem::create_hard_link(folder / "precious", folder / ".model.tmp");
  write_file(ops, folder / "model", "new", Existing::replace);
  EXPECT_EQ(folder.read("precious"), "precious");
  EXPECT_EQ(folder.read("model"), "new");
  EXPECT_EQ(folder.files(), (Names{"model", "precious"}));

  std::filesystem::create_symlink("precious", folder / ".model.tmp");
  const Failure failure = failure_of([&] { write_file(ops, folder / "model", "newer", Existing::replace); });
  EXPECT_TRUE(failure.message_has("cannot write")) << failure;
  EXPECT_EQ(folder.read("precious"), "precious");

  std::filesystem::remove(folder / ".model.tmp");
  std::filesystem::create_symlink("elsewhere", folder / ".model.tmp");
  EXPECT_THROW(write_file(ops, folder / "model", "newer", Existing::replace), Error);
  EXPECT_FALSE(std::filesystem::exists(folder / "elsewhere"));
}

TEST_F(AtomicFileTest, RefusesFoldersDevicesAndLinks) {
  std::filesystem::create_directory(folder / "inner");
  folder.write("file", "content");
  std::filesystem::create_symlink("file", folder / "symlink");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const char* name : {"inner", "inner/", "symlink", "pipe", "file/"}) {
    const Failure failure = failure_of([&] { write_file(ops, folder / name, "new", Existing::replace); });
    EXPECT_TRUE(failure.message_has("cannot write " + (folder / name).string())) << failure;
  }
  EXPECT_TRUE(
      failure_of([&] { write_file(ops, "", "new", Existing::replace); }).message_has("does not name a file"));
  EXPECT_EQ(folder.files(), (Names{"file", "pipe", "symlink"}));
  EXPECT_EQ(folder.read("file"), "content");
}

TEST_F(AtomicFileTest, ErrorNamesTheMissingFolder) {
  const Failure failure =
      failure_of([&] { write_file(ops, folder / "no/such/model", "x", Existing::replace); });
  EXPECT_TRUE(failure.message_has("cannot write " + (folder / "no/such/model").string())) << failure;
  EXPECT_TRUE(failure.hint_has("the folder " + (folder / "no/such").string() + " does not exist")) << failure;
}

TEST_F(AtomicFileTest, ErrorReportsMissingPermission) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  std::filesystem::permissions(folder.path(),
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  const Failure failure = failure_of([&] { write_file(ops, folder / "model", "x", Existing::replace); });
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
  EXPECT_TRUE(failure.message_has("Permission denied") && failure.hint_has("choose another folder"))
      << failure;
}

TEST_F(AtomicFileTest, BareNameIsWrittenToTheWorkingDirectory) {
  const std::filesystem::path here = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write_file(ops, "model", "x", Existing::refuse);
  std::filesystem::current_path(here);
  EXPECT_EQ(folder.files(), Names{"model"});
}

TEST_F(Files, FullDiskGivesAnErrorWithAHint) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const FileHandle full = ops.open_for_writing("/dev/full");
  const Failure failure = failure_of([&] { ops.write(full, std::as_bytes(std::span("x", 1))); });
  ops.close(full);
  EXPECT_EQ(failure.message, "cannot write /dev/full: No space left on device");
  EXPECT_TRUE(failure.hint_has("free some space or choose another folder")) << failure;
}

TEST_F(Files, TheFirstForeignEntryIsFoundByName) {
  const auto ours = [](const std::filesystem::directory_entry& entry) {
    return entry.path().filename().string().starts_with("own");
  };
  EXPECT_EQ(foreign_entry(folder / "missing", ours), "");
  folder.write("set/own.txt", "");
  EXPECT_EQ(foreign_entry(folder / "set", ours), "");
  for (const char* name : {"set/z", "set/b", "set/x"}) folder.write(name, "");
  EXPECT_EQ(foreign_entry(folder / "set", ours), folder / "set/b");
}

TEST_F(Files, NameStateReflectsRenamesAndLinks) {
  const FileHandle file = ops.open_for_writing(folder / "a");
  EXPECT_EQ(ops.name_state(file), NameState::only);
  ops.link(folder / "a", folder / "b");
  EXPECT_EQ(ops.name_state(file), NameState::shared);
  ops.rename(folder / "b", folder / "c");
  ops.remove(folder / "a");
  EXPECT_EQ(ops.name_state(file), NameState::moved);
  folder.write("a", "another");
  EXPECT_EQ(ops.name_state(file), NameState::moved);
  ops.close(file);
}

TEST_F(Files, WritesContinueAtTheEndAfterTruncate) {
  folder.write("log", "line 1\nline 2\nhalf a li");
  const FileHandle file = ops.open_for_writing(folder / "log");
  ops.truncate(file, 14);
  ops.write(file, std::as_bytes(std::span("line 3\n", 7)));
  ops.close(file);
  EXPECT_EQ(folder.read("log"), "line 1\nline 2\nline 3\n");
}

TEST_F(Files, MakeFoldersCreatesMissingFolders) {
  make_folders(ops, folder / "a/b/c");
  make_folders(ops, folder / "a/b/c/");
  make_folders(ops, folder / "a/b/d/");
  EXPECT_TRUE(std::filesystem::is_directory(folder / "a/b/c"));
  EXPECT_TRUE(std::filesystem::is_directory(folder / "a/b/d"));
  std::filesystem::create_directory_symlink("a", folder / "link");
  make_folders(ops, folder / "link");
  make_folders(ops, folder / "link/e");
  EXPECT_TRUE(std::filesystem::is_directory(folder / "a/e"));
  folder.write("file", "");
  EXPECT_TRUE(
      failure_of([&] { make_folders(ops, folder / "file"); }).message_has("a file with that name exists"));
  EXPECT_TRUE(failure_of([&] { make_folders(ops, folder / "file/x"); }).message_has("file/x"));
}

TEST_F(PublishLink, LinksTheFileAndReplacesTheName) {
  folder.write("checkpoints/step-1", "one");
  folder.write("checkpoints/step-2", "two");
  publish_link(ops, folder / "checkpoints/step-1", folder / "last");
  EXPECT_TRUE(same_file(folder / "last", folder / "checkpoints/step-1"));
  publish_link(ops, folder / "checkpoints/step-2", folder / "last");
  EXPECT_TRUE(same_file(folder / "last", folder / "checkpoints/step-2"));
  EXPECT_EQ(folder.read("checkpoints/step-1"), "one");
  EXPECT_EQ(folder.files(), (Names{"checkpoints/step-1", "checkpoints/step-2", "last"}));
}

TEST_F(PublishLink, PublishingTwiceLeavesNoTemporaryFile) {
  folder.write("step", "one");
  folder.write(".last.link", "debris");
  publish_link(ops, folder / "step", folder / "last");
  publish_link(ops, folder / "step", folder / "last");
  EXPECT_EQ(folder.files(), (Names{"last", "step"}));
}

TEST_F(PublishLink, ReplacingTheLinkKeepsTheOriginalFile) {
  folder.write("step", "one");
  publish_link(ops, folder / "step", folder / "last");
  write_file(ops, folder / "last", "two", Existing::replace);
  EXPECT_EQ(folder.read("step"), "one");
  EXPECT_EQ(folder.read("last"), "two");
}

TEST_F(PublishLink, ErrorNamesThePath) {
  const Failure missing = failure_of([&] { publish_link(ops, folder / "nothing", folder / "last"); });
  EXPECT_TRUE(missing.message_has("nothing") && missing.message_has("is not a file")) << missing;
  folder.write("step", "one");
  const Failure parent = failure_of([&] { publish_link(ops, folder / "step", folder / "no/last"); });
  EXPECT_TRUE(parent.message_has("cannot write " + (folder / "no/last").string())) << parent;
  std::filesystem::create_directory(folder / "inner");
  const Failure inner = failure_of([&] { publish_link(ops, folder / "step", folder / "inner"); });
  EXPECT_TRUE(inner.message_has("inner")) << inner;
  EXPECT_EQ(folder.files(), Names{"step"});
}

TEST_F(ReadFile, RefusesFilesAboveTheSizeLimit) {
  folder.write("ten", "0123456789");
  EXPECT_EQ(read_file(folder / "ten", 10), "0123456789");
  const Failure failure = failure_of([&] { read_file(folder / "ten", 9); });
  EXPECT_EQ(failure.message, (folder / "ten").string() + " has 10 bytes, expected at most 9");
  folder.write("empty", "");
  EXPECT_EQ(read_file(folder / "empty", 0), "");
}

TEST_F(ReadFile, ReadsFilesThatReportSizeZero) {
  if (!std::filesystem::exists("/proc/self/status")) GTEST_SKIP() << "no /proc";
  EXPECT_NE(read_file("/proc/self/status", kPlenty).find("Pid:"), std::string::npos);
  EXPECT_TRUE(failure_of([&] { read_file("/proc/self/status", 10); }).message_has("expected at most 10"));
}

TEST_F(ReadFile, ErrorNamesThePath) {
  const Failure missing = failure_of([&] { read_file(folder / "nothing", kPlenty); });
  EXPECT_EQ(missing.message,
            fmt::format("cannot read {}: No such file or directory", (folder / "nothing").string()));
  EXPECT_EQ(missing.hint, "") << "the folder exists";
  EXPECT_TRUE(failure_of([&] { read_file(folder.path(), kPlenty); }).message_has("it is a folder"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(failure_of([&] { read_file(folder / "pipe", kPlenty); }).message_has("not a file"));
}

TEST_F(ReadFile, PipesAreReadUntilTheyEnd) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const std::string name = fmt::format("/dev/fd/{}", ends[0]), text(200'000, 'x');  // larger than a pipe
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    for (std::size_t at = 0; at < text.size();)
      at += static_cast<std::size_t>(::write(ends[1], text.data() + at, text.size() - at));
    ::close(ends[1]);
  });
  EXPECT_TRUE(is_pipe(name));
  EXPECT_EQ(read_file_or_pipe(name, kPlenty).size(), text.size());
  writer.join();
  ::close(ends[0]);

  EXPECT_TRUE(failure_of([&] { read_file_or_pipe("/dev/zero", 1000); }).message_has("more than 1000 bytes"));
  ASSERT_EQ(::mkfifo((folder / "nobody").c_str(), 0600), 0);
  EXPECT_EQ(read_file_or_pipe(folder / "nobody", kPlenty), "");
  folder.write("file", "content");
  EXPECT_FALSE(is_pipe(folder / "file"));
  EXPECT_EQ(read_file_or_pipe(folder / "file", kPlenty), "content");
}

TEST_F(ReadFile, InputFileReadsAtAnyOffsetAndReportsMissingBytes) {
  folder.write("ten", "0123456789");
  InputFile opened(folder / "ten");
  const InputFile file = std::move(opened);
  EXPECT_EQ(file.size(), 10u);
  std::string text(4, ' ');
  auto bytes = std::as_writable_bytes(std::span(text));
  file.read_at(3, bytes);
  EXPECT_EQ(text, "3456");
  file.read_at(6, bytes);
  EXPECT_EQ(text, "6789");
  const Failure failure = failure_of([&] { file.read_at(7, bytes); });
  EXPECT_TRUE(failure.message_has("ten: expected 4 bytes at offset 7, found 3 (the file has 10)")) << failure;
  for (const std::uint64_t far :
       {std::uint64_t{11}, std::uint64_t{1} << 63, ~std::uint64_t{0}, ~std::uint64_t{3}})
    EXPECT_TRUE(failure_of([&] { file.read_at(far, bytes); }).message_has("found 0")) << far;
  file.read_at(10, bytes.first(0));
}

TEST_F(ReadFile, FileTruncatedAfterOpeningIsAnError) {
  folder.write("ten", "0123456789");
  const InputFile file(folder / "ten");
  std::filesystem::resize_file(folder / "ten", 5);
  std::vector<std::byte> bytes(10);
  EXPECT_TRUE(
      failure_of([&] { file.read_at(0, bytes); }).message_has("expected 10 bytes at offset 0, found 5"));
}

}  // namespace
}  // namespace thimble
