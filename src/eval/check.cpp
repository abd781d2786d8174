#include "eval/check.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "data/records.h"
#include "infer/batcher.h"

namespace thimble {

namespace {

constexpr std::size_t kErrorBytes = 200;
constexpr rlim_t kMaxFileBytes = rlim_t{64} << 20;
constexpr int kPollMilliseconds = 20;
constexpr int kCannotExecute = 126, kNotFound = 127;

// A file descriptor that is closed at the end.
struct Descriptor {
  int id = -1;

  explicit Descriptor(int opened = -1) : id(opened) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : id(std::exchange(other.id, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(id, other.id);
    return *this;
  }
  void close() {
    if (id >= 0) ::close(std::exchange(id, -1));
  }
};

std::string system_message(int code) {
  return std::error_code(code, std::generic_category()).message();
}

// Everything that the child needs, prepared before the fork.
struct ChildPlan {
  const char *command = nullptr, *folder = nullptr;
  int input = -1, output = -1, error = -1;
  rlim_t seconds = 1, memory_bytes = 0;
  bool isolated = false;
  std::string user_map, group_map;
};

// fork() runs handlers that take locks, which another thread may hold in a child. This does not.
pid_t plain_fork(long flags) {
  return static_cast<pid_t>(syscall(SYS_clone, flags | SIGCHLD, 0L, 0L, 0L, 0L));
}

// From here on, functions run in a child process and make async-signal-safe calls only.

void set_limit(__rlimit_resource_t resource, rlim_t soft, rlim_t hard) {
  rlimit now{};
  getrlimit(resource, &now);  // a hard limit can only be lowered
  const rlimit limit{.rlim_cur = std::min(soft, now.rlim_max), .rlim_max = std::min(hard, now.rlim_max)};
  setrlimit(resource, &limit);
}

void write_map(const char* path, std::string_view text) {
  const int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written = write(file, text.data(), text.size());
  close(file);
}

[[noreturn]] void execute(const ChildPlan& plan) {
  dup2(plan.input, STDIN_FILENO);
  dup2(plan.output, STDOUT_FILENO);
  dup2(plan.error, STDERR_FILENO);
  syscall(SYS_close_range, 3U, ~0U, 0U);
  for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (chdir(plan.folder) != 0) _exit(kCannotExecute);
  set_limit(RLIMIT_CORE, 0, 0);
  set_limit(RLIMIT_FSIZE, kMaxFileBytes, kMaxFileBytes);
  set_limit(RLIMIT_CPU, plan.seconds, plan.seconds + 1);
  set_limit(RLIMIT_AS, plan.memory_bytes, plan.memory_bytes);
  execl("/bin/sh", "sh", "-c", plan.command, static_cast<char*>(nullptr));
  _exit(kNotFound);
}

// The first process of a check. In a process namespace all others end with it.
[[noreturn]] void supervise(const ChildPlan& plan) {
  setsid();  // a process group of its own, without a terminal
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (plan.isolated) {
    write_map("/proc/self/setgroups", "deny");
    write_map("/proc/self/uid_map", plan.user_map);
    write_map("/proc/self/gid_map", plan.group_map);
  }
  const pid_t child = plain_fork(0);
  if (child == 0) execute(plan);
  if (child < 0) _exit(kCannotExecute);
  for (;;) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, 0);
    if (ended == child) _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    if (ended < 0 && errno != EINTR) _exit(kCannotExecute);
  }
}

// End of the functions that run in a child process.

// One check: its processes, its folder and the end of its standard error.
class RunningCheck {
 public:
  RunningCheck(std::size_t index, const std::string& command, std::string_view input,
               const CheckLimits& limits, bool isolated)
      : index_(index), limits_(limits), end_(seconds_now() + limits.seconds) {
    const Descriptor text(memfd_create("thimble-check", MFD_CLOEXEC));
    check(text.id >= 0, "cannot store the input of a check: {}", system_message(errno));
    if (const int code = write_all(text.id, input); code != 0 || lseek(text.id, 0, SEEK_SET) != 0)
      fail("cannot store the input of a check: {}", system_message(code != 0 ? code : errno));
    const Descriptor nowhere(open("/dev/null", O_WRONLY | O_CLOEXEC));
    check(nowhere.id >= 0, "cannot open /dev/null: {}", system_message(errno));
    std::array<int, 2> ends{};
    check(pipe2(ends.data(), O_CLOEXEC) == 0, "cannot make a pipe: {}", system_message(errno));
    error_ = Descriptor(ends[0]);
    const Descriptor error_out(ends[1]);
    fcntl(error_.id, F_SETFL, O_NONBLOCK);
    const std::string folder = folder_.path().string();
    const ChildPlan plan{.command = command.c_str(),
                         .folder = folder.c_str(),
                         .input = text.id,
                         .output = nowhere.id,
                         .error = error_out.id,
                         .seconds = static_cast<rlim_t>(std::ceil(limits.seconds)),
                         .memory_bytes = limits.memory_bytes,
                         .isolated = isolated,
                         .user_map = fmt::format("{0} {0} 1\n", geteuid()),
                         .group_map = fmt::format("{0} {0} 1\n", getegid())};
    id_ = plain_fork(isolated ? CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWPID : 0);
    if (id_ == 0) supervise(plan);
    start_error_ = id_ < 0 ? errno : 0;
  }
  ~RunningCheck() {
    if (id_ > 0) end_all();
  }
  RunningCheck(const RunningCheck&) = delete;
  RunningCheck& operator=(const RunningCheck&) = delete;

  std::size_t index() const { return index_; }
  int start_error() const { return start_error_; }  // an errno value; 0: it was started
  pollfd event() const { return {.fd = error_.id, .events = POLLIN, .revents = 0}; }

  // The outcome if the check has ended or its time is over.
  std::optional<CheckOutcome> advance() {
    read_errors();
    siginfo_t info{};
    const bool ended =
        waitid(P_PID, static_cast<id_t>(id_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == id_;
    if (!ended && seconds_now() < end_) return std::nullopt;
    const int code = end_all();
    read_errors();
    return CheckOutcome{.result = result_of(code, ended), .exit_code = code, .error = std::move(kept_)};
  }

 private:
  // Kills what is left of the check. The group cannot be another one, because its first process is
  // reaped last.
  int end_all() {
    ::kill(-id_, SIGKILL);
    ::kill(id_, SIGKILL);  // if it has not made its group yet
    int status = 0;
    while (waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
    id_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  void read_errors() {
    std::array<char, 4096> piece;
    // A bounded number of reads, because a program may write without end.
    for (int reads = 0; reads < 64 && error_.id >= 0; ++reads) {
      const ssize_t count = read(error_.id, piece.data(), piece.size());
      if (count < 0) return;
      if (count == 0) return error_.close();
      kept_.append(piece.data(), static_cast<std::size_t>(count));
      if (kept_.size() > kErrorBytes) kept_.erase(0, kept_.size() - kErrorBytes);
    }
  }

  CheckResult result_of(int code, bool ended) const {
    if (!ended || code == 128 + SIGXCPU) return CheckResult::timed_out;
    if (code == 0) return CheckResult::passed;
    constexpr std::array<std::string_view, 6> kMessages = {"MemoryError",      "bad_alloc",
                                                           "ut of memory",     "annot allocate memory",
                                                           "memory exhausted", "memory allocation of"};
    const bool memory = std::ranges::any_of(
        kMessages, [&](std::string_view text) { return kept_.find(text) != std::string::npos; });
    return memory ? CheckResult::out_of_memory : CheckResult::failed;
  }

  std::size_t index_;
  const CheckLimits& limits_;
  double end_;
  TemporaryFolder folder_;
  Descriptor error_;
  pid_t id_ = -1;
  int start_error_ = 0;
  std::string kept_;  // of standard error
};

// Waits until one of the checks may have ended.
void wait_for_any(std::span<const std::unique_ptr<RunningCheck>> running) {
  std::vector<pollfd> events;
  for (const auto& one : running) events.push_back(one->event());
  // A closed standard error mostly means that the process is about to end.
  const bool closed = std::ranges::any_of(events, [](const pollfd& event) { return event.fd < 0; });
  poll(events.data(), events.size(), closed ? 1 : kPollMilliseconds);
}

// Whether checks can run in namespaces of their own. Some kernels and containers forbid it.
bool can_isolate() {
  const CheckLimits limits{.seconds = 30};
  const std::string nothing;
  std::vector<std::unique_ptr<RunningCheck>> probe;
  probe.push_back(std::make_unique<RunningCheck>(0, "echo > file", nothing, limits, true));
  if (probe[0]->start_error() != 0) return false;
  for (;; wait_for_any(probe))
    if (const auto outcome = probe[0]->advance()) return outcome->exit_code == 0;
}

}  // namespace

double pass_at_k(std::int64_t n, std::int64_t c, std::int64_t k) {
  check(k >= 1 && k <= n && c >= 0 && c <= n, "[pass@k] k = {} of {} completions, of which {} passed", k, n,
        c);
  if (n - c < k) return 1;
  double none = 1;
  for (std::int64_t i = n - c + 1; i <= n; ++i) none *= 1 - static_cast<double>(k) / static_cast<double>(i);
  return 1 - none;
}

std::string_view name_of(CheckResult result) {
  switch (result) {
    case CheckResult::passed:
      return "passed";
    case CheckResult::failed:
      return "failed";
    case CheckResult::timed_out:
      return "timed out";
    case CheckResult::out_of_memory:
      return "out of memory";
  }
  return "";
}

Checker::Checker(std::string command, const CheckLimits& limits, const Interrupt* interrupt)
    : command_(std::move(command)), limits_(limits) {
  const std::string nothing;
  cuts_network_ = can_isolate();
  const CheckOutcome outcome = run(std::span(&nothing, 1), ProgressOutput::nowhere(), interrupt).front();
  if (outcome.exit_code != kNotFound && outcome.exit_code != kCannotExecute) return;
  fail(Hint{"the command runs in an empty folder: name programs and files by absolute paths"},
       "cannot execute the command of --check: it ends with exit code {}{}{}", outcome.exit_code,
       outcome.error.empty() ? "" : ": ", outcome.error.substr(0, outcome.error.find('\n')));
}

std::vector<CheckOutcome> Checker::run(std::span<const std::string> inputs, const ProgressOutput& progress,
                                       const Interrupt* interrupt) const {
  std::vector<CheckOutcome> outcomes(inputs.size());
  std::vector<std::unique_ptr<RunningCheck>> running;
  ProgressBar bar(progress, "checking", "completions", inputs.size());
  std::size_t next = 0, done = 0;
  while (done < inputs.size()) {
    if (interrupt) interrupt->throw_if_interrupted();
    while (next < inputs.size() && std::cmp_less(running.size(), limits_.jobs)) {
      auto started = std::make_unique<RunningCheck>(next, command_, inputs[next], limits_, cuts_network_);
      const int code = started->start_error();
      check(code == 0, "cannot start a process for a check: {}", system_message(code));
      running.push_back(std::move(started));
      ++next;
    }
    wait_for_any(running);
    for (auto& one : running)
      if (auto outcome = one->advance()) {
        outcomes[one->index()] = std::move(*outcome);
        one.reset();
        bar.update(++done);
      }
    std::erase(running, nullptr);
  }
  return outcomes;
}

namespace {

Hint prompt_form() {
  return {R"(write one prompt per line: {"prompt": "def f(x):", "test": "assert f(1) == 1"})"};
}

std::string text_field(const Json& json, std::string_view name, std::string_view where) {
  const Json* found = json.find(name);
  if (!found || found->is_null()) return "";
  check(found->is_string(), prompt_form(), "{}: {} is not a string", where, name);
  return found->as_string();
}

Request check_request_for(const CheckPrompt& prompt, std::size_t index, const Tokenizer& tokenizer,
                          const CheckOptions& options) {
  Request request = text_request(tokenizer, prompt.prompt);
  request.sampling = options.sampling;
  request.sampling.seed += index * static_cast<std::uint64_t>(options.samples);
  request.sampling.suppressed = textless_ids(tokenizer, request.stop_ids);
  request.samples = options.samples;
  request.max_tokens = options.max_tokens;
  request.stop_strings = options.stops;
  request.stop_strings.insert(request.stop_strings.end(), prompt.stops.begin(), prompt.stops.end());
  return request;
}

// The completions of each prompt; none for a prompt that fills the context.
std::vector<std::vector<std::string>> complete_all(Model& model, const Tokenizer& tokenizer,
                                                   std::span<const CheckPrompt> prompts,
                                                   const CheckOptions& options,
                                                   const ProgressOutput& progress,
                                                   const Interrupt* interrupt) {
  const auto samples = static_cast<std::size_t>(options.samples);
  std::vector<std::vector<std::string>> texts(prompts.size());
  Batcher batcher(model, &tokenizer,
                  {.slots = std::min(options.slots, std::ssize(prompts) * options.samples)});
  std::map<RequestId, std::size_t> asked;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    Request request = check_request_for(prompts[i], i, tokenizer, options);
    if (std::cmp_greater_equal(request.prompt.size(), model.config().context)) continue;
    texts[i].resize(samples);
    try {
      asked[batcher.submit(std::move(request))] = i;
    } catch (const Error& error) {
      fail("{}: {}", prompts[i].where, error.what());
    }
  }
  ProgressBar bar(progress, "generating", "completions", asked.size() * samples);
  while (batcher.busy()) {
    if (interrupt) interrupt->throw_if_interrupted();
    for (const Event& event : batcher.step()) {
      if (event.error) throw *event.error;
      texts[asked.at(event.request)][static_cast<std::size_t>(event.sample)] += event.text;
      if (event.finish) bar.advance(1);
    }
  }
  return texts;
}

}  // namespace

CheckPrompt check_prompt(const Json& json, std::string_view where) {
  check(json.is_object() && json.find("prompt") != nullptr, prompt_form(),
        "{}: expected a JSON object with a prompt", where);
  CheckPrompt prompt{.prompt = text_field(json, "prompt", where),
                     .test = text_field(json, "test", where),
                     .where = std::string(where)};
  const std::string entry_point = text_field(json, "entry_point", where);
  if (!prompt.test.empty() && !entry_point.empty()) prompt.test += fmt::format("\ncheck({})\n", entry_point);
  if (const Json* stops = json.find("stop"); stops && !stops->is_null()) {
    check(stops->is_array(), prompt_form(), "{}: stop is not a list of strings", where);
    for (const Json& stop : stops->as_array()) {
      check(stop.is_string(), prompt_form(), "{}: stop is not a list of strings", where);
      prompt.stops.push_back(stop.as_string());
    }
  }
  return prompt;
}

std::vector<CheckPrompt> read_check_prompts(const std::filesystem::path& path, std::uint64_t limit) {
  const DataSource source = find_source(path.string());
  RecordReader reader(source, {.kind = DataKind::text, .split = DocumentSplit::line});
  std::vector<CheckPrompt> prompts;
  while (limit == 0 || prompts.size() < limit) {
    const auto record = reader.next();
    if (!record) break;
    const std::string where = fmt::format("{}:{}", record->file->string(), record->line);
    check(record->problem.empty(), prompt_form(), "{}", record->problem);
    check(record->starts && record->ends, "{}: the line is too long for a prompt", where);
    if (record->json)
      prompts.push_back(
          check_prompt(parse_json(record->raw, record->file->string(), {.first_line = record->line}), where));
    else if (!record->raw.empty())
      prompts.push_back({.prompt = record->raw, .where = where});
  }
  check(!prompts.empty(), prompt_form(), "{} contains no prompts", path.string());
  return prompts;
}

double CheckScore::pass_at(std::int64_t k) const {
  double sum = 0;
  for (const std::int64_t count : passed) sum += pass_at_k(samples, count, k);
  return passed.empty() ? 0 : sum / static_cast<double>(passed.size());
}

CheckScore score_checks(Model& model, const Tokenizer& tokenizer, std::span<const CheckPrompt> prompts,
                        const Checker& checker, const CheckOptions& options, const ProgressOutput& progress,
                        const Interrupt* interrupt) {
  check(!prompts.empty(), "there are no prompts to complete");
  const auto texts = complete_all(model, tokenizer, prompts, options, progress, interrupt);
  CheckScore score{.passed = std::vector<std::int64_t>(prompts.size()), .samples = options.samples};
  std::vector<std::string> inputs;
  std::vector<CheckedCompletion> completions;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (texts[i].empty()) {
      ++score.too_long;
      score.counts[CheckResult::failed] += options.samples;
    }
    for (const std::string& text : texts[i]) {
      const std::string& test = prompts[i].test;
      inputs.push_back(fmt::format("{}{}{}{}", prompts[i].prompt, text, test.empty() ? "" : "\n", test));
      completions.push_back({.prompt = i, .text = text});
    }
  }
  std::vector<CheckOutcome> outcomes = checker.run(inputs, progress, interrupt);
  for (std::size_t i = 0; i < completions.size(); ++i) {
    CheckedCompletion& completion = completions[i];
    completion.outcome = std::move(outcomes[i]);
    ++score.counts[completion.outcome.result];
    score.passed[completion.prompt] += completion.outcome.result == CheckResult::passed;
    const bool shown = !score.failed.empty() && score.failed.back().prompt == completion.prompt;
    if (completion.outcome.result != CheckResult::passed && !shown &&
        score.failed.size() < options.keep_failed)
      score.failed.push_back(std::move(completion));
  }
  return score;
}

}  // namespace thimble
