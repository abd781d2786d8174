#include "cli/console.h"

#include <fcntl.h>
#include <pty.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

#include "cli/redirected.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

// stdout is a non-blocking pipe with a slow reader.
TEST(Console, WaitsForTheReaderOfANonBlockingStdout) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  ASSERT_EQ(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
  std::fflush(stdout);

  std::string received;
  std::thread reader([&] {
    usleep(20000);
    std::array<char, 4096> block;
    for (ssize_t count; (count = read(ends[0], block.data(), block.size())) > 0;)
      received.append(block.data(), static_cast<std::size_t>(count));
  });
  const std::string text(1 << 20, 'x');  // larger than the buffer of a pipe
  std::string trouble;
  {
    const Redirected redirected(STDOUT_FILENO, ends[1]);
    close(ends[1]);  // stdout is now the only writing end
    try {
      Console(false, false).print(text);
    } catch (const std::exception& error) {
      trouble = error.what();
    }
  }
  reader.join();
  close(ends[0]);
  EXPECT_EQ(trouble, "");
  EXPECT_EQ(received.size(), text.size());
}

// For example a log on a full disk, or a closed terminal.
TEST(Console, IgnoresAStderrThatCannotBeWritten) {
  std::fflush(stderr);
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  int code = -1;
  std::string trouble;
  {
    const Redirected redirected(STDERR_FILENO, full);
    try {
      const Console console(false, false);
      console.log().info("a line");
      console.tell("another");
      console.progress().write("a bar");
      code = run_here({"nonsense"});  // its error message is lost
    } catch (const std::exception& error) {
      trouble = error.what();
    }
  }
  close(full);
  EXPECT_EQ(trouble, "");
  EXPECT_EQ(code, kExitUsage);
}

TEST(Console, LimitsTheWidthOfAPage) {
  setenv("COLUMNS", "99999999999", 1);
  EXPECT_EQ(page_width(80), 1000u);
  setenv("COLUMNS", "120", 1);
  EXPECT_EQ(page_width(80), 120u);
  unsetenv("COLUMNS");
}

// The output of a stream to a terminal while `run` runs.
std::string shown_at_terminal(int stream, const std::function<void()>& run) {
  int terminal = -1, end = -1;
  EXPECT_EQ(openpty(&terminal, &end, nullptr, nullptr, nullptr), 0);
  {
    const Redirected redirected(stream, end);
    run();
  }
  std::array<char, 1 << 14> block;
  std::string shown;
  fcntl(terminal, F_SETFL, O_NONBLOCK);
  for (ssize_t count; (count = read(terminal, block.data(), block.size())) > 0;)
    shown.append(block.data(), static_cast<std::size_t>(count));
  close(end);
  close(terminal);
  return shown;
}

// Every command, and every error message, escapes text from files.
TEST(Console, EscapesControlCharactersFromFiles) {
  const TempFolder folder;
  const std::string hostile = "a\x1b]0;mine\x07z", safe = "a\uFFFD]0;mine\uFFFDz";
  const std::string file = folder.write("a.txt", hostile).string();
  int code = -1;
  const std::string result = shown_at_terminal(STDOUT_FILENO, [&] {
    code = run_here({"data", "info", file, "--quiet"});
  });
  EXPECT_EQ(code, kExitDone);
  EXPECT_NE(result.find(safe), std::string::npos) << result;
  EXPECT_EQ(result.find(hostile), std::string::npos) << result;

  const std::string error = shown_at_terminal(STDERR_FILENO, [&] { run_here({hostile}); });
  EXPECT_NE(error.find(safe), std::string::npos) << error;
  EXPECT_EQ(error.find(hostile), std::string::npos) << error;

  const std::string log =
      shown_at_terminal(STDERR_FILENO, [&] { Console(false, false).log().warning("{}", hostile); });
  EXPECT_EQ(log, "warning: " + safe + "\r\n");
}

TEST(Errors, OfStdFilesystemHaveTheUsualForm) {
  const std::string endless(5000, 'x');  // longer than a file name may be
  testing::internal::CaptureStderr();
  const int code = run_here({"inspect", endless});
  const std::string error = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, kExitFailed);
  EXPECT_EQ(error, "error: cannot access " + endless + ": File name too long\n");
}

}  // namespace
}  // namespace thimble
