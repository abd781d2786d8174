// The loop of `thimble chat`: reads messages and commands, shows answers as they come.
#pragma once

#include "base/json.h"
#include "cli/chat_input.h"
#include "cli/console.h"
#include "infer/chat_session.h"

namespace thimble {

class ChatRepl {
 public:
  struct Style {
    bool interactive = false;  // somebody sits there: prompts, notices, errors do not end it
    std::string_view prompt = {};
  };

  // All outlive it. `interrupt`: of a task if interactive, else of the program.
  ChatRepl(ChatSession& session, LineEditor& lines, Interrupt& interrupt, const Console& console, Style style)
      : session_(session), lines_(lines), interrupt_(interrupt), console_(console), style_(style) {}

  int run();  // the exit code. With --json the object is printed however it ends

 private:
  struct Entry {
    std::string_view name, argument, help;
    void (ChatRepl::*run)(const std::string& argument);
  };
  static std::span<const Entry> table();

  int talk();
  void handle(const Message& message);
  void answer(const std::function<Reply(const ChatSession::Show&)>& ask);
  void say(std::string_view notice) const { console_.log().info("{}", notice); }
  void tell(std::string_view text) const;  // what was asked for, also under --quiet
  void save_to(const std::string& path, bool replace);

  void clear(const std::string&);
  void help(const std::string&);
  void load(const std::string& path);
  void quit(const std::string&) { done_ = true; }
  void retry(const std::string&);
  void save(const std::string& path) { save_to(path, false); }
  void save_over(const std::string& path) { save_to(path, true); }
  void stats(const std::string&);
  void system(const std::string& text);

  ChatSession& session_;
  LineEditor& lines_;
  Interrupt& interrupt_;
  const Console& console_;
  Style style_;
  bool done_ = false;
  Json replies_ = Json::array();
  std::optional<Reply> last_;
  std::int64_t answers_ = 0, generated_ = 0, dropped_ = 0;
};

}  // namespace thimble
