// A model says whatever its text made of it. At a terminal that is text too: no escape sequence, no bell.
#include <sstream>

#include "base/json.h"
#include "support/pseudo_terminal.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

// Sets the title, rings, clears the screen, begins a sequence in one character (U+009B).
const std::string kHostile =
    "\x1b]0;mine\x07\x1b[2J\xC2\x9B"
    "31mred";

class HostileOutput : public testing::Test {
 protected:
  // A model that knows nothing else.
  HostileOutput() {
    std::string chats;
    for (int i = 0; i < 60; ++i) chats += chat_line(fmt::format("Hm {}?", i));
    folder_.write("chats.jsonl", chats);
    folder_.write("val.jsonl", chat_line("Well?"));
    std::vector<std::string> arguments = {
        "train",      "--preset",        "chat", "--data",      path("chats.jsonl"),
        "--val-data", path("val.jsonl"), "-o",   path("run"),   "--tokenizer",
        "bytes:chat", "--steps",         "200",  "--val-every", "200",
        "--quiet"};
    for (const char* setting : {"context=64", "layers=2", "dim=64", "heads=2", "kv_heads=1", "mlp_hidden=128",
                                "batch_tokens=512"}) {
      arguments.push_back("--set");
      arguments.push_back(setting);
    }
    const RunResult trained = run_binary({.arguments = arguments});
    EXPECT_EQ(trained.exit_code, 0) << trained;
  }

  static std::string chat_line(const std::string& question) {
    return Json::object()
               .set("messages",
                    Json::array({Json::object().set("role", "user").set("content", question),
                                 Json::object().set("role", "assistant").set("content", kHostile)}))
               .dump() +
           "\n";
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  // "dumb": a terminal to which we ourselves send no sequence either.
  TerminalOptions terminal(std::vector<std::string> arguments) const {
    return {.arguments = std::move(arguments),
            .environment = {{"XDG_STATE_HOME", path("state")}, {"TERM", "dumb"}, {"NO_COLOR", "1"}}};
  }

  TempFolder folder_;
};

void expect_no_sequences(const std::string& shown) {
  for (const char* control : {"\x1b", "\x07", "\xC2\x9B"})
    EXPECT_EQ(shown.find(control), std::string::npos) << shown;
  EXPECT_NE(shown.find("\uFFFD]0;"), std::string::npos) << "it did say it" << shown;
}

TEST_F(HostileOutput, IsTextAtATerminal) {
  PseudoTerminal chat(terminal({"chat", path("run"), "--greedy"}));
  ASSERT_TRUE(chat.wait_for("> "));
  chat.type("Hm?\r");
  ASSERT_TRUE(chat.wait_for("31mred")) << chat.shown();
  chat.type(kControlD);
  EXPECT_EQ(chat.wait_for_exit(), 0);
  expect_no_sequences(chat.shown());
}

TEST_F(HostileOutput, IsAsItWasInAFile) {
  const RunResult script = run_binary({.arguments = {"chat", path("run"), "--greedy"}, .input = "Hm?\n"});
  EXPECT_EQ(script.exit_code, 0) << script;
  for (const char* control : {"\x1b]0;", "\x07"})
    EXPECT_NE(script.out.find(control), std::string::npos) << script;
  const RunResult json =
      run_binary({.arguments = {"chat", path("run"), "--greedy", "--json"}, .input = "Hm?\n"});
  EXPECT_EQ(json.out.find('\x1b'), std::string::npos) << "JSON has escapes of its own" << json;
  const Json replies = parse_json(json.out, "stdout").at("replies");
  EXPECT_TRUE(replies.as_array().at(0).at("text").as_string().starts_with("\x1b]0;")) << json;
}

}  // namespace
}  // namespace thimble
