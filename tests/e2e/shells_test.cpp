// Shells and man can read the completions and the man page that the binary prints.
#include <fmt/format.h>

#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

bool is_installed(const std::string& program) {
  return run_program("/bin/bash", {.arguments = {"-c", "command -v " + program}}).exit_code == 0;
}

// Runs a script in the shell with the binary's folder on PATH.
RunResult in_shell(const std::string& shell, const std::string& script,
                   std::map<std::string, std::string> environment = {}) {
  environment["PATH"] = binary_path().parent_path().string() + ":" + std::getenv("PATH");
  return run_program("/usr/bin/env",
                     {.arguments = {shell, "-c", script}, .environment = std::move(environment)});
}

TEST(Completions, RejectAnUnknownShell) {
  const RunResult run = run_binary({.arguments = {"completions", "tcsh"}});
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_NE(run.err.find("bash, zsh or fish"), std::string::npos) << run;
}

class EveryShell : public testing::TestWithParam<const char*> {};

TEST_P(EveryShell, ParsesItsScript) {
  const std::string shell = GetParam();
  if (!is_installed(shell)) GTEST_SKIP() << shell << " is not installed";
  const TempFolder folder;
  const RunResult script = run_binary({.arguments = {"completions", shell}});
  ASSERT_EQ(script.exit_code, 0) << script;
  const auto file = folder.write("script", script.out);
  const RunResult run = run_program("/usr/bin/env", {.arguments = {shell, "-n", file.string()}});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_EQ(run.err, "") << run;
}

INSTANTIATE_TEST_SUITE_P(Completions, EveryShell, testing::Values("bash", "zsh", "fish"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Completions, BashCompletesCommandsGroupsFlagsAndChoices) {
  const RunResult run = in_shell("bash", R"sh(
    set -u
    eval "$(thimble completions bash)"
    complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _thimble; echo "${COMPREPLY[*]}"; }
    complete_words thimble tok
    complete_words thimble tokenizer i
    complete_words thimble export m --fo
    complete_words thimble export m --format g
    complete_words thimble run m --max-t
    complete_words thimble completions z
    complete_words thimble pack m -o ''
    complete_words thimble man '' | wc -w)sh");  // --markdown and --help
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_EQ(run.out, "tokenizer\ninfo\n--format --force\ngguf\n--max-tokens\nzsh\n\n2\n") << run;
}

TEST(Completions, ZshCompletesCommandsGroupsFlagsAndChoices) {
  if (!is_installed("zsh")) GTEST_SKIP() << "zsh is not installed";
  // These stand-ins for the completion system's functions print their arguments.
  const RunResult run = in_shell("zsh", R"sh(
    compdef() { : }
    _files() { echo files }
    _describe() { local name=${@[-1]}; print -l -- ${(P)name} }
    eval "$(thimble completions zsh)"
    at() { words=("$@"); CURRENT=$#; _thimble }
    at thimble tokenizer '' | grep '^info:'
    at thimble export m --fo | grep '^--format:'
    at thimble export m --format ''
    at thimble run m --fo | grep -c '^--max-tokens:'
    at thimble pack m -o ''
    at thimble pack '')sh");
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_EQ(run.err, "") << run;
  EXPECT_TRUE(run.out.starts_with("info:")) << run;
  EXPECT_NE(run.out.find("\n--format:"), std::string::npos) << run;
  EXPECT_NE(run.out.find("\ngguf\nollama\nhf\nsafetensors\npeft\nhtml\njs\n1\nfiles\nfiles\n"), std::string::npos)
      << run;
}

TEST(Completions, FishCompletesCommandsGroupsFlagsAndChoices) {
  if (!is_installed("fish")) GTEST_SKIP() << "fish is not installed";
  const TempFolder home;
  const RunResult run = in_shell("fish", R"sh(
    thimble completions fish | source
    complete -C 'thimble tok' | cut -f1
    complete -C 'thimble tokenizer i' | cut -f1
    complete -C 'thimble export m --form' | cut -f1
    complete -C 'thimble export m --format g' | cut -f1
    complete -C 'thimble run m --max-t' | cut -f1
    complete -C 'thimble completions z' | cut -f1)sh",
                                 {{"HOME", home.path().string()}});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_EQ(run.out, "tokenizer\ninfo\n--format\ngguf\n--max-tokens\nzsh\n") << run;
}

TEST(ManPage, ParsesWithoutWarnings) {
  const RunResult page = run_binary({.arguments = {"man"}});
  ASSERT_EQ(page.exit_code, 0) << page;
  const TempFolder folder;
  const auto file = folder.write("thimble.1", page.out);
  if (!is_installed("groff") && !is_installed("mandoc"))
    GTEST_SKIP() << "neither groff nor mandoc is installed";
  if (is_installed("groff")) {
    const RunResult run = run_program(
        "/usr/bin/env", {.arguments = {"groff", "-man", "-ww", "-z", "-b", "-Tutf8", file.string()}});
    EXPECT_EQ(run.exit_code, 0) << run;
    EXPECT_EQ(run.err, "") << run;
  }
  if (is_installed("mandoc")) {
    const RunResult run =
        run_program("/usr/bin/env", {.arguments = {"mandoc", "-T", "lint", "-W", "warning", file.string()}});
    EXPECT_EQ(run.exit_code, 0) << run;
    EXPECT_EQ(run.out, "") << run;
  }
}

TEST(ManPage, CanBeLimitedToACommandOrGroup) {
  const RunResult one = run_binary({.arguments = {"man", "tokenizer", "train"}});
  EXPECT_EQ(one.exit_code, 0) << one;
  EXPECT_NE(one.out.find(".SS thimble tokenizer train"), std::string::npos) << one;
  EXPECT_EQ(one.out.find(".SS thimble doctor"), std::string::npos) << one;
  const RunResult group = run_binary({.arguments = {"man", "tokenizer"}});
  EXPECT_NE(group.out.find(".SS thimble tokenizer info"), std::string::npos) << group;
  EXPECT_EQ(run_binary({.arguments = {"man", "nonsense"}}).exit_code, 2);
  EXPECT_EQ(run_binary({.arguments = {"man", "doctor", "more"}}).exit_code, 2);
}

TEST(Width, FollowsTheTerminal) {
  const auto longest = [](const std::string& columns, std::vector<std::string> arguments) {
    const RunResult run =
        run_binary({.arguments = std::move(arguments), .environment = {{"COLUMNS", columns}}});
    std::size_t most = 0;
    for (std::size_t begin = 0; begin < run.out.size();) {
      const std::size_t end = std::min(run.out.find('\n', begin), run.out.size());
      most = std::max(most, end - begin);
      begin = end + 1;
    }
    return most;
  };
  EXPECT_LE(longest("40", {"train", "--help"}), 40u);
  EXPECT_GT(longest("200", {"train", "--help"}), 80u);
  EXPECT_LE(longest("200", {"train", "--help"}), 100u);
  EXPECT_LE(longest("60", {"doctor"}), 60u);
  EXPECT_GT(longest("200", {"doctor"}), 60u);
}

// script(1) provides a terminal: coloured by default, without colours under NO_COLOR.
TEST(Colour, IsSwitchedOffByNoColor) {
  if (!is_installed("script")) GTEST_SKIP() << "script (of bsdutils) is not installed";
  const std::string command = "script -qec 'thimble --help' /dev/null";
  const RunResult colours = in_shell("bash", command, {{"TERM", "xterm"}, {"NO_COLOR", ""}});
  EXPECT_NE(colours.out.find("\x1b[1m"), std::string::npos) << colours;
  const RunResult none = in_shell("bash", command, {{"TERM", "xterm"}, {"NO_COLOR", "1"}});
  EXPECT_EQ(none.exit_code, 0) << none;
  EXPECT_EQ(none.out.find('\x1b'), std::string::npos) << none;
  const RunResult dumb = in_shell("bash", command, {{"TERM", "dumb"}, {"NO_COLOR", ""}});
  EXPECT_EQ(dumb.out.find('\x1b'), std::string::npos) << dumb;
}

}  // namespace
}  // namespace thimble
