#include "support/run_binary.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <ostream>
#include <utility>

#include "base/error.h"

extern char** environ;  // NOLINT: POSIX requires this declaration

namespace thimble {

namespace {

void check_call(bool ok, const char* call) {
  check(ok, "{}: {}", call, std::strerror(errno));
}

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { close(); }

  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  void close() {
    if (number_ >= 0) ::close(std::exchange(number_, -1));
  }

 private:
  int number_ = -1;
};

struct Pipe {
  Descriptor read, write;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  check_call(pipe2(ends.data(), O_CLOEXEC) == 0, "pipe2");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    if (!changes.contains(text.substr(0, text.find('=')))) result.push_back(text);
  }
  for (const auto& [name, value] : changes)
    if (!value.empty()) result.push_back(name + "=" + value);
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Whether the program has a handler for the signal; without one it would end silently. SIGKILL and
// SIGSTOP need none.
bool handles_signal(pid_t process, int signal) {
  if (signal == SIGKILL || signal == SIGSTOP) return true;
  constexpr std::string_view kCaught = "SigCgt:";
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(kCaught))
      return std::stoull(line.substr(kCaught.size()), nullptr, 16) >> (signal - 1) & 1;
  return false;
}

// A running child and this side of its three streams.
class Child {
 public:
  Child(const std::filesystem::path& program, const RunOptions& options)
      : options_(options), started_(std::chrono::steady_clock::now()) {
    std::vector<std::string> words = options.arguments;
    words.insert(words.begin(), program.string());
    std::vector<std::string> variables = environment_with(options.environment);
    const std::vector<char*> argv = pointers(words), envp = pointers(variables);

    Pipe input = make_pipe(), output = make_pipe(), errors = make_pipe();
    if (!options.stdout_to.empty()) {
      output.write = Descriptor(open(options.stdout_to.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
      check_call(output.write.is_open(), options.stdout_to.c_str());
      output.read.close();
    }
    id_ = fork();
    check_call(id_ >= 0, "fork");
    if (id_ == 0) {  // only async-signal-safe calls from here to exec
      setpgid(0, 0);
      // Ignored signals would stay ignored after exec, which is not what users start with.
      for (const int number : {SIGPIPE, SIGINT, SIGTERM, SIGHUP}) signal(number, SIG_DFL);
      dup2(input.read.number(), STDIN_FILENO);
      dup2(output.write.number(), STDOUT_FILENO);
      dup2(errors.write.number(), STDERR_FILENO);
      if (options.folder.empty() || chdir(options.folder.c_str()) == 0)
        execve(argv[0], argv.data(), envp.data());
      _exit(127);
    }
    setpgid(id_, id_);  // both processes do it, so that it is done before either continues
    in_ = std::move(input.write);
    out_ = std::move(output.read);
    err_ = std::move(errors.read);
    fcntl(in_.number(), F_SETFL, O_NONBLOCK);
  }

  RunResult wait() {
    while (in_.is_open() || out_.is_open() || err_.is_open()) {
      send_signals();
      exchange();
    }
    // The streams are closed but the process may still run; the timeout continues.
    int status = 0;
    rusage usage{};
    while (wait4(id_, &status, WNOHANG, &usage) == 0) {
      send_signals();
      usleep(1000);
    }
    if (WIFEXITED(status)) result_.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) result_.signal = WTERMSIG(status);
    result_.peak_bytes = std::int64_t{usage.ru_maxrss} * 1024;
    return std::move(result_);
  }

 private:
  void send_signals() {
    const double seconds = seconds_since_start();
    if (seconds > options_.timeout_seconds && !result_.timed_out) {
      result_.timed_out = true;
      kill(-id_, SIGKILL);  // the process group, because children hold the pipes open
    }
    if (options_.signal == 0 || signalled_ || seconds < options_.signal_after_seconds) return;
    if (result_.err.find(options_.signal_after_text) == std::string::npos) return;
    if (options_.signal_when && !options_.signal_when()) return;
    if (!handles_signal(id_, options_.signal)) return;
    signalled_ = true;
    kill(id_, options_.signal);
  }

  void exchange() {
    std::array<pollfd, 3> streams = {pollfd{in_.number(), POLLOUT, 0}, pollfd{out_.number(), POLLIN, 0},
                                     pollfd{err_.number(), POLLIN, 0}};  // poll skips negative numbers
    const timespec tick = until_next_poll();
    if (ppoll(streams.data(), streams.size(), &tick, nullptr) <= 0) return;
    if (streams[0].revents) feed();
    if (streams[1].revents) drain(out_, result_.out);
    if (streams[2].revents) drain(err_, result_.err);
  }

  // With microsecond precision: a signal that is only sent on a tick would miss everything between
  // two ticks.
  timespec until_next_poll() const {
    constexpr double kTickSeconds = 0.01, kShortTickSeconds = 0.001;  // while a condition is polled
    double seconds = kTickSeconds;
    if (options_.signal != 0 && !signalled_) {
      const double left = options_.signal_after_seconds - seconds_since_start();
      seconds = left > 0 ? std::clamp(left, 0.0002, kTickSeconds) : kShortTickSeconds;
    }
    return {.tv_sec = 0, .tv_nsec = static_cast<long>(seconds * 1e9)};
  }

  double seconds_since_start() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  }

  void feed() {
    const ssize_t written = write(in_.number(), options_.input.data() + fed_, options_.input.size() - fed_);
    if (written > 0) fed_ += static_cast<std::size_t>(written);
    if ((written < 0 && errno != EAGAIN) || fed_ == options_.input.size()) in_.close();
  }

  static void drain(Descriptor& from, std::string& to) {
    std::array<char, 65536> buffer;
    const ssize_t count = read(from.number(), buffer.data(), buffer.size());
    if (count > 0)
      to.append(buffer.data(), static_cast<std::size_t>(count));
    else
      from.close();
  }

  const RunOptions& options_;
  std::chrono::steady_clock::time_point started_;
  pid_t id_ = -1;
  Descriptor in_, out_, err_;
  std::size_t fed_ = 0;
  bool signalled_ = false;
  RunResult result_;
};

}  // namespace

std::ostream& operator<<(std::ostream& stream, const RunResult& result) {
  stream << "exit code " << result.exit_code;
  if (result.signal) stream << ", signal " << result.signal;
  if (result.timed_out) stream << ", timed out";
  return stream << "\nstdout:\n" << result.out << "\nstderr:\n" << result.err;
}

RunResult run_program(const std::filesystem::path& program, const RunOptions& options) {
  signal(SIGPIPE, SIG_IGN);  // a child that does not read its input must not kill the test
  return Child(program, options).wait();
}

RunResult run_binary(const RunOptions& options) {
  return run_program(binary_path(), options);
}

std::filesystem::path binary_path() {
  return THIMBLE_BINARY;
}

std::filesystem::path source_folder() {
  return THIMBLE_SOURCE_DIR;
}

}  // namespace thimble
