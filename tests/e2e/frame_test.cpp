// Common to all commands: exit codes, output streams, error messages.
#include <csignal>
#include <fstream>

#include "base/json.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

TEST(Version, IsPrintedOnStdout) {
  const RunResult run = run_binary({.arguments = {"--version"}});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_EQ(run.out, "thimble 0.1.0\n");
  EXPECT_EQ(run.err, "");
}

TEST(Version, AcceptsNoOtherArguments) {
  const RunResult run = run_binary({.arguments = {"--version", "--json"}});
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_EQ(run.out, "");
}

TEST(Limits, AFileLargerThanAllowedIsAnErrorThatLeavesNothing) {
  const TempFolder folder;
  const RunResult run = run_program(
      "/bin/bash", {.arguments = {"-c", "ulimit -f 16; exec \"$0\" data sample --size 1M -o tales.jsonl",
                                  binary_path().string()},
                    .folder = folder.path()});
  EXPECT_EQ(run.exit_code, 1) << run;
  EXPECT_NE(run.err.find("error: cannot write tales.jsonl: File too large\nhint: "), std::string::npos)
      << run;
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Limits, MoreThreadsThanCpusAreReported) {
  const TempFolder folder;
  const std::string file = folder.write("a.txt", "text").string();
  const RunResult many = run_binary({.arguments = {"data", "info", file, "--quiet", "--threads", "4000"}});
  EXPECT_EQ(many.exit_code, 0) << many;
  EXPECT_NE(many.err.find("warning: 4000 threads share "), std::string::npos) << many;
  const RunResult few = run_binary({.arguments = {"data", "info", file, "--threads", "1"}});
  EXPECT_EQ(few.err.find("warning"), std::string::npos) << few;

  const RunResult too_many =
      run_binary({.arguments = {"data", "info", file}, .environment = {{"OMP_NUM_THREADS", "32768"}}});
  EXPECT_EQ(too_many.exit_code, 2) << too_many;
  EXPECT_NE(too_many.err.find("OMP_NUM_THREADS expects at most 4096 threads, found 32768"), std::string::npos)
      << too_many;
}

TEST(Overview, IsAnErrorWithoutArgumentsAndHelpOnRequest) {
  const RunResult bare = run_binary({}), requested = run_binary({.arguments = {"--help"}});
  EXPECT_EQ(bare.exit_code, 2) << bare;
  EXPECT_EQ(bare.out, "");
  EXPECT_EQ(requested.exit_code, 0) << requested;
  EXPECT_EQ(requested.err, "");
  EXPECT_EQ(bare.err, requested.out);
  EXPECT_NE(requested.out.find("doctor"), std::string::npos);
}

TEST(Help, IgnoresTheOtherArguments) {
  const RunResult run = run_binary({.arguments = {"doctor", "--nonsense", "extra", "--help"}});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_NE(run.out.find("thimble doctor [options]"), std::string::npos) << run;
  EXPECT_EQ(run.err, "");
}

TEST(WrongUsage, IsExplainedOnStderrWithExitCode2) {
  struct Case {
    std::vector<std::string> arguments;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{"doctor", "--jsno"},
       "error: unknown option --jsno for 'doctor'\nhint: did you mean --json?\nrun 'thimble doctor "
       "--help'\n"},
      {{"docter"}, "error: unknown command 'docter'\nhint: did you mean 'doctor'?\nrun 'thimble --help'\n"},
      {{"frobnicate"}, "error: unknown command 'frobnicate'\nrun 'thimble --help'\n"},
      {{"--jsno"},
       "error: expected a command, found the option '--jsno'\nhint: options follow the command\n"
       "run 'thimble --help'\n"},
      {{"doctor", "--threads"},
       "error: --threads needs a value (N), found the end of the command line\nrun 'thimble doctor "
       "--help'\n"},
      {{"doctor", "--threads", "0"},
       "error: --threads expects a whole number from 1 to 4096, found '0'\nrun 'thimble doctor --help'\n"},
      {{"doctor", "extra"},
       "error: 'doctor' expects no arguments, found an extra argument: 'extra'\nrun 'thimble doctor "
       "--help'\n"},
  };
  for (const Case& wrong : cases) {
    const RunResult run = run_binary({.arguments = wrong.arguments});
    EXPECT_EQ(run.exit_code, 2) << run;
    EXPECT_EQ(run.out, "");
    std::string err = run.err;  // debug builds add the source location
    if (const auto at = err.find("at: "); at != err.npos) err.erase(at, err.find('\n', at) + 1 - at);
    EXPECT_EQ(err, wrong.message);
  }
}

TEST(Stdout, WithoutSpaceIsAnError) {
  const RunResult run = run_binary({.arguments = {"doctor"}, .stdout_to = "/dev/full"});
  EXPECT_EQ(run.exit_code, 1) << run;
  EXPECT_TRUE(run.err.starts_with("error: cannot write the result to stdout: No space left on device"))
      << run;
}

RunResult run_shell(const std::string& script) {
  return run_program("/bin/bash", {.arguments = {"-c", script, "bash", binary_path().string()}});
}

TEST(Stdout, ThatIsNotReadEndsQuietly) {
  // `true` may end before or after the first write; the sleep makes it end before.
  const RunResult run = run_shell("(sleep 0.2; exec \"$1\" doctor) | true; exit ${PIPESTATUS[0]}");
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_EQ(run.err, "");
}

TEST(Stdout, ThatIsClosedIsAnError) {
  const RunResult run = run_shell("exec \"$1\" doctor >&-");
  EXPECT_EQ(run.exit_code, 1) << run;
  EXPECT_TRUE(run.err.starts_with("error: cannot write the result to stdout: Bad file descriptor")) << run;
}

TEST(Colour, IsForTerminalsOnly) {
  for (const char* argument : {"--help", "docter"}) {
    const RunResult run = run_binary({.arguments = {argument}, .environment = {{"TERM", "xterm"}}});
    EXPECT_EQ((run.out + run.err).find('\x1b'), std::string::npos) << run;
  }
}

TEST(Completions, CompleteCommandsAndOptions) {
  const RunResult run = run_shell(R"sh(
    set -u
    eval "$("$1" completions bash)"
    complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _thimble; echo "${COMPREPLY[*]}"; }
    complete_words thimble do
    complete_words thimble doctor --m
    complete_words thimble doctor --threads ''
    complete_words thimble completions b)sh");
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_EQ(run.out, "doctor\n--measure\n\nbash\n") << run;
}

TEST(Doctor, PrintsExactlyOneJsonObject) {
  const RunResult run = run_binary({.arguments = {"doctor", "--json", "--threads", "1"}});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_EQ(run.err, "");
  const Json report = parse_json(run.out, "stdout");  // fails if anything follows the object
  EXPECT_TRUE(report.is_object());
  EXPECT_EQ(report.at("version").as_string(), "0.1.0");
  EXPECT_EQ(report.at("threads").as_int(), 1);
  EXPECT_GE(report.at("cpu").at("usable_cpus").as_int(), 1);
}

TEST(Doctor, ThreadsComeFromTheOptionOrTheEnvironment) {
  const auto report = [](std::vector<std::string> arguments) {
    const RunResult run = run_binary({.arguments = arguments, .environment = {{"OMP_NUM_THREADS", "3"}}});
    return parse_json(run.out, "stdout");
  };
  const Json plain = report({"doctor", "--json"});
  if (plain.at("build").at("type").as_string().ends_with("ThreadSanitizer"))
    GTEST_SKIP() << "parallel loops are serial under ThreadSanitizer";
  EXPECT_EQ(plain.at("threads").as_int(), 3);
  EXPECT_EQ(report({"doctor", "--json", "--threads", "2"}).at("threads").as_int(), 2);
}

TEST(Interrupt, DuringALongCommandExitsWith130) {
  const RunResult run = run_binary(
      {.arguments = {"doctor", "--measure", "--json"}, .signal = SIGINT, .signal_after_text = "measuring"});
  EXPECT_EQ(run.exit_code, 130) << run;
  EXPECT_EQ(run.out, "");
  EXPECT_TRUE(run.err.ends_with("interrupted\n")) << run;
}

}  // namespace
}  // namespace thimble
