#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file_ops.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/parallel.h"
#include "base/signals.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/help.h"
#include "cli/parse.h"
#include "cli/train_inputs.h"
#include "dist/plugins.h"

namespace thimble {

namespace {

// Makes idle OpenMP threads spin for a short time before they sleep.
//
// By default libgomp spins for milliseconds. That is right on an otherwise idle machine. With a browser, a second run or
// parallel tests beside it, every small parallel loop then waits for a time slice (docs/benchmarks.md has figures). A short
// spin is as fast in the first case and harmless in the second.
//
// libgomp reads its settings when it is loaded, long before main, so the process starts again. Returns if they are set
// already, by the user or by the first start.
void restart_with_short_spin(char** argv) {
  prctl(PR_SET_NAME, program_invocation_short_name);  // after the restart ps and pkill would know it as "exe"
  constexpr const char* kVariable = "GOMP_SPINCOUNT";
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv(kVariable)) return;
  if (setenv(kVariable, "1000", 0) != 0) return;
  execv("/proc/self/exe", argv);  // where that fails, we go on as we are
}

using Words = std::vector<std::string>;

HelpStyle help_style(int descriptor) {
  return {.bold = wants_colour(descriptor), .columns = page_width(kHelpColumns)};
}

void apply_threads(const Arguments& arguments) {
  if (!arguments.takes("threads")) return;
  if (arguments.given("threads"))
    set_threads(static_cast<int>(arguments.integer("threads", {.least = 1, .most = 4096})));
  else if (!std::getenv("OMP_NUM_THREADS"))
    // OpenMP itself knows neither a container's limit nor that other ranks share the machine.
    set_threads(
        threads_of_rank(read_launch(), usable_cpus(), static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN))));
}

int run_command(const Command& command, const Words& words, char** argv) {
  if (asks_for_help(words)) {
    Console(false, false).print(command_help(command, help_style(STDOUT_FILENO)));
    return kExitDone;
  }
  const Arguments arguments = parse(command, words);
  const bool computes = arguments.takes("threads");
  if (computes) restart_with_short_spin(argv);
  apply_threads(arguments);
  Console console(arguments.takes("json") && arguments.flag("json"),
                  arguments.takes("quiet") && arguments.flag("quiet"));
  cpu_level();  // a wrong THIMBLE_CPU is an error of every command
  if (computes && detected_cpu_level() == CpuLevel::scalar)
    console.log().info("this CPU has no AVX2: computing without vector instructions, which is slow");
  return command.run(arguments, console);
}

int print_version(const Words& words) {
  if (words.size() > 1) throw UsageError(fmt::format("--version stands alone, found '{}'", words[1]));
  Console(false, false).print(fmt::format("thimble {}\n", version()));
  return kExitDone;
}

// `topic` becomes the name of the command once it is known: usage errors point at its --help.
int dispatch(Words words, char** argv, std::string& topic) {
  if (!words.empty() && words[0] == "help") {  // "help train" is "train --help"
    words.erase(words.begin());
    words.push_back("--help");
  }
  if (!words.empty() && words[0] == "--version") return print_version(words);
  const std::vector<Command> commands = all_commands();
  if (words.empty()) {
    write_to_stderr(overview(commands, help_style(STDERR_FILENO)));
    return kExitUsage;
  }
  if (words[0] == "--help" || words[0] == "-h") {
    Console(false, false).print(overview(commands, help_style(STDOUT_FILENO)));
    return kExitDone;
  }
  if (words[0].starts_with('-'))
    throw UsageError(fmt::format("expected a command, found the option '{}'", words[0]),
                     Hint{"options follow the command"});

  const CommandMatch match = find_command(commands, words);
  const Words rest(words.begin() + static_cast<std::ptrdiff_t>(match.words), words.end());
  if (!match.command) {
    topic = words[0] + " ";
    if (!asks_for_help(rest)) throw UsageError(fmt::format("'{}' needs a subcommand", words[0]));
    Console(false, false).print(group_help(words[0], commands, help_style(STDOUT_FILENO)));
    return kExitDone;
  }
  topic = fmt::format("{} ", match.command->name);
  return run_command(*match.command, rest, argv);
}

void report(std::string_view message) {
  constexpr std::string_view kStart = "error:";
  std::string text = safe_for(STDERR_FILENO, message);  // it may quote what stands in a file
  if (wants_colour(STDERR_FILENO) && text.starts_with(kStart))
    text.replace(0, kStart.size(), "\x1b[1;31merror:\x1b[0m");
  write_to_stderr(text + "\n");
}

}  // namespace

int run_thimble(int argc, char** argv) {
  std::string topic;
  try {
    keep_standard_streams_open();
    std::signal(SIGPIPE, SIG_IGN);  // a write then fails with EPIPE: also what the server wants
    return dispatch(Words(argv + 1, argv + argc), argv, topic);
  } catch (const BrokenPipe&) {
    return kExitDone;
  } catch (const Interrupted&) {
    report("interrupted");
    return kExitInterrupted;
  } catch (const UsageError& error) {
    let_first_rank_speak();
    report(describe(error));
    report(fmt::format("run 'thimble {}--help'", topic));
    return kExitUsage;
  } catch (const Error& error) {
    let_first_rank_speak();
    report(describe(error));
  } catch (const std::filesystem::filesystem_error& error) {
    let_first_rank_speak();
    report(describe(FileError("look at", error.path1(), error.code().value())));
  } catch (const std::bad_alloc&) {
    report("error: out of memory\nhint: make the model, the batch or the context smaller");
  } catch (const std::logic_error& error) {
    report(fmt::format("error: {}\nhint: this is a bug in thimble, not in what you typed", error.what()));
  } catch (const std::exception& error) {
    report(fmt::format("error: {}", error.what()));
  }
  return kExitFailed;
}

}  // namespace thimble
