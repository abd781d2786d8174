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
// By default libgomp spins for milliseconds. If other programs compete for the cores, every small
// parallel loop then waits for a time slice. A short spin is as fast on an idle machine.
//
// libgomp reads its settings when it is loaded, before main(), so the process must execute itself
// again. Returns if the settings are present already, from the user or from the first execution.
void restart_with_short_spin(char** argv) {
  prctl(PR_SET_NAME, program_invocation_short_name);  // otherwise ps and pkill show "exe" after the restart
  constexpr const char* kVariable = "GOMP_SPINCOUNT";
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv(kVariable)) return;
  if (setenv(kVariable, "1000", 0) != 0) return;
  execv("/proc/self/exe", argv);  // continue without it if that fails
}

using Words = std::vector<std::string>;

HelpStyle help_style(int descriptor, bool all = false) {
  return {.bold = wants_colour(descriptor), .all = all, .columns = page_width(kHelpColumns)};
}

constexpr int kMostThreads = 4096;
constexpr int kCrowded = 2;  // threads per CPU from which on a warning is useful

void apply_threads(const Arguments& arguments, const Log& log) {
  // libgomp aborts the program if it cannot create the threads.
  if (max_threads() > kMostThreads)
    throw UsageError(
        fmt::format("OMP_NUM_THREADS expects at most {} threads, found {}", kMostThreads, max_threads()));
  if (!arguments.takes("threads")) return;
  if (arguments.given("threads"))
    set_threads(static_cast<int>(arguments.integer("threads", {.least = 1, .most = kMostThreads})));
  else if (!std::getenv("OMP_NUM_THREADS"))
    // OpenMP considers neither container limits nor other ranks on this machine.
    set_threads(
        threads_of_rank(read_launch(), usable_cpus(), static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN))));
  if (const int threads = max_threads(), cpus = usable_cpus(); threads > kCrowded * cpus)
    log.warning("{} threads share {} CPUs, which is slow; --threads {} is fastest", threads, cpus, cpus);
}

int run_command(const Command& command, const Words& words, char** argv) {
  if (const HelpRequest help = help_request(words); help != HelpRequest::none) {
    const HelpStyle style = help_style(STDOUT_FILENO, help == HelpRequest::all);
    Console(false, false).print(command_help(command, style));
    return kExitDone;
  }
  const Arguments arguments = parse(command, words);
  const bool computes = arguments.takes("threads");
  if (computes) restart_with_short_spin(argv);
  Console console(arguments.takes("json") && arguments.flag("json"),
                  arguments.takes("quiet") && arguments.flag("quiet"));
  apply_threads(arguments, console.log());
  cpu_level();  // every command reports an invalid THIMBLE_CPU
  if (computes && detected_cpu_level() == CpuLevel::scalar)
    console.log().info("this CPU has no AVX2; computing without vector instructions is slow");
  return command.run(arguments, console);
}

int print_version(const Words& words) {
  if (words.size() > 1) throw UsageError(fmt::format("--version takes no arguments, found '{}'", words[1]));
  Console(false, false).print(fmt::format("thimble {}\n", version()));
  return kExitDone;
}

// Sets `topic` to the name of the command, for the --help that usage errors refer to.
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
    if (help_request(rest) == HelpRequest::none)
      throw UsageError(fmt::format("'{}' needs a subcommand", words[0]));
    Console(false, false).print(group_help(words[0], commands, help_style(STDOUT_FILENO)));
    return kExitDone;
  }
  topic = fmt::format("{} ", match.command->name);
  return run_command(*match.command, rest, argv);
}

}  // namespace

int run_inside(const Words& words, Capture& capture) {
  if (words.empty()) throw UsageError("the name of a command is missing");
  const std::vector<Command> commands = all_commands();
  const CommandMatch match = find_command(commands, words);
  if (!match.command) throw UsageError(fmt::format("'{}' needs a subcommand", words[0]));
  const Command& command = *match.command;
  for (const std::string_view alone : {"chat", "serve", "sweep"})
    if (command.name == alone)
      throw UsageError(fmt::format("{} runs only as a program", alone),
                       Hint{fmt::format("start `thimble {}`", alone)});
  const Arguments arguments =
      parse(command, {words.begin() + static_cast<std::ptrdiff_t>(match.words), words.end()});
  Console console(arguments.takes("json") && arguments.flag("json"),
                  arguments.takes("quiet") && arguments.flag("quiet"), &capture);
  apply_threads(arguments, console.log());
  return command.run(arguments, console);
}

namespace {

void report(std::string_view message) {
  constexpr std::string_view kStart = "error:";
  std::string text = safe_for(STDERR_FILENO, message);  // it may quote the contents of a file
  if (wants_colour(STDERR_FILENO) && text.starts_with(kStart))
    text.replace(0, kStart.size(), "\x1b[1;31merror:\x1b[0m");
  write_to_stderr(text + "\n");
}

}  // namespace

int run_thimble(int argc, char** argv) {
  std::string topic;
  try {
    keep_standard_streams_open();
    std::signal(SIGPIPE, SIG_IGN);  // writes fail with EPIPE instead, which the server needs as well
    std::signal(SIGXFSZ, SIG_IGN);  // writes beyond ulimit -f fail with EFBIG instead
    return dispatch(Words(argv + 1, argv + argc), argv, topic);
  } catch (const BrokenPipe&) {
    return kExitDone;
  } catch (const Interrupted&) {
    report("interrupted");
    return kExitInterrupted;
  } catch (const UsageError& error) {
    let_first_rank_report();
    report(describe(error));
    report(fmt::format("run 'thimble {}--help'", topic));
    return kExitUsage;
  } catch (const Error& error) {
    let_first_rank_report();
    report(describe(error));
  } catch (const std::filesystem::filesystem_error& error) {
    let_first_rank_report();
    report(describe(FileError("access", error.path1(), error.code().value())));
  } catch (const std::bad_alloc&) {
    report("error: out of memory\nhint: use a smaller model, batch or context");
  } catch (const std::logic_error& error) {
    report(fmt::format("error: {}\nhint: this is a bug in thimble; please report it", error.what()));
  } catch (const std::exception& error) {
    report(fmt::format("error: {}", error.what()));
  }
  return kExitFailed;
}

}  // namespace thimble
