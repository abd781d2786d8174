// A program on a terminal that the test holds: what it shows can be read, and keys can be pressed.
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

// Nobody waits as long unless something is wrong, or the machine is busy with others.
inline constexpr double kPatience = 240;  // seconds

struct TerminalOptions {
  std::vector<std::string> arguments = {};
  std::map<std::string, std::string> environment = {};  // set on top of ours; "" unsets
  int columns = 80, rows = 24;
  std::filesystem::path program = {};  // empty: the thimble that was just built
};

class PseudoTerminal {
 public:
  explicit PseudoTerminal(const TerminalOptions& options);
  ~PseudoTerminal();  // kills what still runs
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;

  void type(std::string_view keys) const;

  // Reads until `text` is shown, behind all that earlier calls waited for. Says whether it came in time.
  bool wait_for(std::string_view text, double seconds = kPatience);
  // Reads until the program waits for keys, not for lines: none that is pressed now is missed.
  bool wait_for_keys(double seconds = kPatience);
  // What was shown since the beginning; escape sequences and carriage returns are taken out of plain().
  const std::string& shown() const { return shown_; }
  std::string plain() const;
  std::string plain_since(std::size_t position) const;  // a position in shown()
  void read_all();                                      // what is there

  // Freezes the program, as if the machine were busy with others, and lets it go on.
  void freeze() const;
  void thaw() const;
  void send(int signal) const;
  int process() const { return process_; }

  // Exit code, or -1: a signal ended it, or the time is over.
  int wait_for_exit(double seconds = kPatience);

 private:
  bool read_some(double seconds);  // false: nothing came

  int terminal_ = -1;
  pid_t process_ = -1;
  bool ended_ = false;
  std::string shown_;
  std::size_t seen_ = 0;  // waited for so far
};

}  // namespace thimble
