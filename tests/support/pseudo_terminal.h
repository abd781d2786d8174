// A program on a pseudo terminal: the test can read its output and type keys.
//
//   PseudoTerminal terminal({.arguments = {"chat", model}});
//   terminal.wait_for("> ");
//   terminal.type("Hello\r");
//   EXPECT_TRUE(terminal.wait_for("Hi!")) << terminal.shown();
//   terminal.type(kControlD);
//   EXPECT_EQ(terminal.wait_for_exit(), 0);
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

inline constexpr std::string_view kControlC = "\x03", kControlD = "\x04", kUp = "\x1b[A", kEnter = "\r";

// Only reached if something is wrong or the machine is very busy.
inline constexpr double kPatience = 240;  // seconds

struct TerminalOptions {
  std::vector<std::string> arguments = {};
  std::map<std::string, std::string> environment = {};  // additions; "" unsets
  int columns = 80, rows = 24;
  std::filesystem::path program = {};  // empty: the thimble that was built
};

class PseudoTerminal {
 public:
  explicit PseudoTerminal(const TerminalOptions& options);
  ~PseudoTerminal();  // kills the program if it still runs
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;

  void type(std::string_view keys) const;

  // Reads until `text` appears after everything that earlier calls waited for. Returns false on a
  // timeout.
  bool wait_for(std::string_view text, double seconds = kPatience);
  // Reads until the program waits for single keys, so that no key typed now is lost.
  bool wait_for_keys(double seconds = kPatience);
  // All output so far. plain() removes escape sequences and carriage returns.
  const std::string& shown() const { return shown_; }
  std::string plain() const;
  std::string plain_since(std::size_t position) const;  // a position in shown()
  void read_all();                                      // reads all available output

  // Suspends the program, as on a very busy machine, and resumes it.
  void freeze() const;
  void thaw() const;
  void send(int signal) const;
  int process() const { return process_; }

  // The exit code, or -1 if a signal ended it or on a timeout.
  int wait_for_exit(double seconds = kPatience);

 private:
  bool read_some(double seconds);  // false: no output

  int terminal_ = -1;
  pid_t process_ = -1;
  bool ended_ = false;
  std::string shown_;
  std::size_t seen_ = 0;  // end of the last text that was waited for
};

}  // namespace thimble
