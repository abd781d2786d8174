// Tests of the test runner: it must detect failures.
#include "support/run_binary.h"

#include <chrono>
#include <csignal>

namespace thimble {
namespace {

RunResult shell(const std::string& script, RunOptions options = {}) {
  options.arguments = {"-c", script};
  return run_program("/bin/bash", options);
}

TEST(Runner, ReturnsExitCodeSignalAndBothStreams) {
  const RunResult run = shell("echo out; echo err >&2; exit 3");
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_EQ(run.signal, 0);
  EXPECT_EQ(run.out, "out\n");
  EXPECT_EQ(run.err, "err\n");

  const RunResult killed = shell("kill -TERM $$");
  EXPECT_EQ(killed.exit_code, -1);
  EXPECT_EQ(killed.signal, SIGTERM);
}

TEST(Runner, PassesLargeInputAndOutput) {
  const std::string text(3'000'000, 'x');
  EXPECT_EQ(shell("cat", {.input = text}).out, text);
  EXPECT_EQ(shell("exit 5", {.input = text}).exit_code, 5);  // the input is not read
}

TEST(Runner, SetsFolderAndEnvironment) {
  const RunResult run = shell("pwd; echo \"$GREETING${HOME:-none}\"",
                              {.folder = "/", .environment = {{"GREETING", "hello "}, {"HOME", ""}}});
  EXPECT_EQ(run.out, "/\nhello none\n");
}

TEST(Runner, KillsAProgramAndItsChildrenOnTimeout) {
  const auto started = std::chrono::steady_clock::now();
  const RunResult run = shell("sleep 1000 & sleep 1000; exit 0", {.timeout_seconds = 0.2});
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(500));
  EXPECT_TRUE(run.timed_out);
  EXPECT_EQ(run.signal, SIGKILL);
}

TEST(Runner, SendsASignalAfterAText) {
  const RunResult run = shell("trap 'exit 42' USR1; echo ready >&2; while true; do sleep 0.01; done",
                              {.signal = SIGUSR1, .signal_after_text = "ready"});
  EXPECT_EQ(run.exit_code, 42) << run;
}

TEST(Runner, SendsASignalOnceItIsCaughtAndTheConditionHolds) {
  int polls = 0;
  const RunResult run = shell("sleep 0.2; trap 'exit 42' USR1; while true; do sleep 0.01; done",
                              {.signal = SIGUSR1, .signal_when = [&] { return ++polls > 3; }});
  EXPECT_EQ(run.exit_code, 42) << run;
  EXPECT_GT(polls, 3);
}

TEST(Runner, MeasuresPeakMemory) {
  const RunResult run = shell("dd if=/dev/zero of=/dev/null bs=20000000 count=1 2>/dev/null");
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_GT(run.peak_bytes, 20'000'000);
  EXPECT_LT(run.peak_bytes, 200'000'000);
}

TEST(Runner, ReportsAMissingProgram) {
  EXPECT_EQ(run_program("/nonexistent/program", {}).exit_code, 127);
}

}  // namespace
}  // namespace thimble
