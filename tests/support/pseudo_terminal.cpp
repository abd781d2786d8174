#include "support/pseudo_terminal.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "support/run_binary.h"

namespace thimble {

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The state is the field after the name in parentheses in /proc/PID/stat.
bool is_asleep(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(") ");
  return name_end != std::string::npos && line.substr(name_end + 2, 1) == "S";
}

}  // namespace

PseudoTerminal::PseudoTerminal(const TerminalOptions& options) {
  std::vector<std::string> words = options.arguments;
  words.insert(words.begin(), options.program.empty() ? binary_path().string() : options.program.string());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  winsize size{};
  size.ws_col = static_cast<unsigned short>(options.columns);
  size.ws_row = static_cast<unsigned short>(options.rows);
  process_ = forkpty(&terminal_, nullptr, nullptr, &size);
  check(process_ >= 0, "forkpty: {}", std::strerror(errno));
  if (process_ == 0) {
    // Not restricted to async-signal-safe calls, because the test program has a single thread here.
    for (const auto& [name, value] : options.environment)
      value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
    termios settings{};
    tcgetattr(STDIN_FILENO, &settings);
    settings.c_iflag |= IUTF8;  // as terminals do: backspace removes a character, not a byte
    tcsetattr(STDIN_FILENO, TCSANOW, &settings);
    for (const int number : {SIGPIPE, SIGINT, SIGTERM, SIGHUP}) signal(number, SIG_DFL);
    execv(argv[0], argv.data());
    _exit(127);
  }
}

PseudoTerminal::~PseudoTerminal() {
  if (!ended_) {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  close(terminal_);
}

void PseudoTerminal::type(std::string_view keys) const {
  while (!keys.empty()) {
    const ssize_t written = write(terminal_, keys.data(), keys.size());
    check(written > 0 || errno == EINTR, "typing: {}", std::strerror(errno));
    if (written > 0) keys.remove_prefix(static_cast<std::size_t>(written));
  }
}

bool PseudoTerminal::read_some(double seconds) {
  pollfd stream{terminal_, POLLIN, 0};
  if (poll(&stream, 1, static_cast<int>(seconds * 1000)) <= 0) return false;
  std::array<char, 65536> buffer;
  const ssize_t count = read(terminal_, buffer.data(), buffer.size());  // fails at the end
  if (count <= 0) return false;
  shown_.append(buffer.data(), static_cast<std::size_t>(count));
  return true;
}

bool PseudoTerminal::wait_for(std::string_view text, double seconds) {
  const double end = now() + seconds;
  for (;;) {
    if (const std::size_t at = shown_.find(text, seen_); at != std::string::npos) {
      seen_ = at + text.size();
      return true;
    }
    const double left = end - now();
    if (left <= 0 || !read_some(left)) return false;
  }
}

void PseudoTerminal::read_all() {
  while (read_some(0)) {
  }
}

bool PseudoTerminal::wait_for_keys(double seconds) {
  for (const double end = now() + seconds; now() < end; read_some(0.002)) {
    termios settings{};
    tcgetattr(terminal_, &settings);
    if (!(settings.c_lflag & ICANON) && is_asleep(process_)) return true;
  }
  return false;
}

void PseudoTerminal::send(int signal) const {
  kill(process_, signal);
}

std::string PseudoTerminal::plain() const {
  return plain_since(0);
}

std::string PseudoTerminal::plain_since(std::size_t position) const {
  std::string out;
  for (std::size_t i = position; i < shown_.size(); ++i) {
    if (shown_[i] == '\x1b') {
      if (++i < shown_.size() && shown_[i] == '[')
        while (++i < shown_.size() && (shown_[i] < '@' || shown_[i] > '~')) {
        }
      continue;
    }
    if (shown_[i] != '\r') out += shown_[i];
  }
  return out;
}

void PseudoTerminal::freeze() const {
  kill(process_, SIGSTOP);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(process_), &info, WSTOPPED | WEXITED | WNOWAIT);
}

void PseudoTerminal::thaw() const {
  kill(process_, SIGCONT);
}

int PseudoTerminal::wait_for_exit(double seconds) {
  int status = 0;
  for (const double end = now() + seconds; waitpid(process_, &status, WNOHANG) == 0;) {
    if (now() > end) return -1;
    read_some(0.01);  // the program may be blocked on a full terminal
  }
  ended_ = true;
  read_all();
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace thimble
