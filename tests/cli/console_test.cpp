#include "cli/console.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <thread>

namespace thimble {
namespace {

// stdout is a pipe that refuses what it has no room for, and whose reader comes late.
TEST(Console, WaitsForAReaderWhereStdoutDoesNotBlock) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  ASSERT_EQ(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
  std::fflush(stdout);
  const int before = dup(STDOUT_FILENO);
  ASSERT_EQ(dup2(ends[1], STDOUT_FILENO), STDOUT_FILENO);
  close(ends[1]);

  std::string received;
  std::thread reader([&] {
    usleep(20000);
    std::array<char, 4096> block;
    for (ssize_t count; (count = read(ends[0], block.data(), block.size())) > 0;)
      received.append(block.data(), static_cast<std::size_t>(count));
  });
  const std::string text(1 << 20, 'x');  // much more than a pipe holds
  std::string trouble;
  try {
    Console(false, false).print(text);
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  dup2(before, STDOUT_FILENO);  // closes the last end that is written to
  close(before);
  reader.join();
  close(ends[0]);
  EXPECT_EQ(trouble, "");
  EXPECT_EQ(received.size(), text.size());
}

}  // namespace
}  // namespace thimble
