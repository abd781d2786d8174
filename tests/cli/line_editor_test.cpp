// Chat input without a terminal.
#include "cli/line_editor.h"

#include <cstdlib>
#include <deque>
#include <optional>

#include "cli/console.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

// A LineEditor that returns given lines, then Ctrl-C or the end of input.
class Typed : public LineEditor {
 public:
  explicit Typed(std::deque<std::string> lines, LineEnd end = LineEnd::closed)
      : lines_(std::move(lines)), end_(end) {}

  Line read(std::string_view prompt) override {
    prompts.emplace_back(prompt);
    if (lines_.empty()) return {end_};
    Line line{LineEnd::line, lines_.front()};
    lines_.pop_front();
    return line;
  }

  std::vector<std::string> prompts;

 private:
  std::deque<std::string> lines_;
  LineEnd end_;
};

std::vector<std::string> messages(std::deque<std::string> lines) {
  Typed typed(std::move(lines));
  std::vector<std::string> out;
  for (Message line = read_message(typed, "> "); line.end == LineEnd::line; line = read_message(typed, "> "))
    out.push_back(line.text);
  return out;
}

using Texts = std::vector<std::string>;

TEST(ChatInput, ALineIsAMessage) {
  EXPECT_EQ(messages({"one", "", "two \"quoted\""}), (Texts{"one", "", "two \"quoted\""}));
}

TEST(ChatInput, ABackslashContinuesTheMessage) {
  EXPECT_EQ(messages({"a\\", "b\\", "c", "d"}), (Texts{"a\nb\nc", "d"}));
  EXPECT_EQ(messages({"a\\"}), Texts{"a\n"}) << "the end of the input ends the message";
  Typed typed({"a\\", "b"});
  read_message(typed, "> ");
  EXPECT_EQ(typed.prompts, (Texts{"> ", ". "}));
}

TEST(ChatInput, ThreeQuotesStartAndEndABlock) {
  EXPECT_EQ(messages({"\"\"\"", "a", "", "b\\", "\"\"\"", "c"}), (Texts{"a\n\nb\\", "c"}));
  EXPECT_EQ(messages({"\"\"\"a", "b\"\"\""}), Texts{"a\nb"});
  EXPECT_EQ(messages({"\"\"\"a\"\"\""}), Texts{"a"});
  EXPECT_EQ(messages({"\"\"\"a", "b"}), Texts{"a\nb"});
  EXPECT_EQ(messages({"\"\"\"", "\"\"\""}), Texts{""});
}

TEST(ChatInput, AQuotedBlockIsNotACommand) {
  for (const std::deque<std::string>& lines :
       {std::deque<std::string>{"\"\"\"/quit\"\"\""}, {"\"\"\"", "/quit"}}) {
    Typed typed(lines);
    const Message message = read_message(typed, "> ");
    EXPECT_EQ(message.text, "/quit");
    EXPECT_TRUE(message.quoted);
    Typed again({message.as_typed()});  // as recalled with the arrow keys
    EXPECT_EQ(read_message(again, "> ").text, "/quit");
  }
  Typed plain({"/quit"});
  const Message message = read_message(plain, "> ");
  EXPECT_FALSE(message.quoted);
  EXPECT_EQ(message.as_typed(), "/quit");
}

TEST(ChatInput, AnInterruptedMessageIsDiscarded) {
  for (const std::deque<std::string>& lines : {std::deque<std::string>{}, {"a\\"}, {"\"\"\"a"}, {"\"\"\""}}) {
    Typed typed(lines, LineEnd::interrupted);
    EXPECT_EQ(read_message(typed, "> ").end, LineEnd::interrupted);
  }
}

TEST(ChatInput, CommandsStartWithOneSlash) {
  const auto parsed = [](std::string_view text) {
    const auto command = parse_chat_command(text);
    return command ? command->name + "|" + command->argument : "message";
  };
  EXPECT_EQ(parsed("/clear"), "clear|");
  EXPECT_EQ(parsed("/save!  my file.jsonl "), "save!|my file.jsonl");
  EXPECT_EQ(parsed("//etc"), "message");
  EXPECT_EQ(parsed("/"), "message");
  EXPECT_EQ(parsed("1/2"), "message");
  EXPECT_EQ(parsed("/pasted\ntext"), "message");
  EXPECT_EQ(unescaped_message("//etc"), "/etc");
  EXPECT_EQ(unescaped_message("etc"), "etc");
  EXPECT_EQ(unescaped_message("// a comment\nint x;"), "// a comment\nint x;") << "pasted code is unchanged";
}

TEST(ChatInput, EscapeSequencesFromModelsAreReplaced) {
  EXPECT_EQ(terminal_safe("a\tb\nGrüße 😀"), "a\tb\nGrüße 😀");
  EXPECT_EQ(terminal_safe("\x1b[2J\x07\r\x7f"), "\uFFFD[2J\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(terminal_safe("\xC2\x9B"
                          "1m \xC2\xA0"),
            "\uFFFD1m \xC2\xA0")
      << "U+009B starts an escape sequence as well";
}

constexpr auto kOwnerReadsAndWrites =
    std::filesystem::perms::owner_read | std::filesystem::perms::owner_write;

std::filesystem::perms permissions(const std::filesystem::path& path) {
  return std::filesystem::status(path).permissions();
}

TEST(LineHistory, RoundTrips) {
  const TempFolder folder;
  const Texts lines = {"one", "two\nlines", "\"\\ Grüße 😀"};
  const auto path = folder / "deep/down/history";
  for (const std::string& line : lines) append_line_history(path, line);
  EXPECT_EQ(read_line_history(path, 9), lines);
  EXPECT_EQ(permissions(path.parent_path()), std::filesystem::perms::owner_all);
  EXPECT_EQ(permissions(path), kOwnerReadsAndWrites);
}

TEST(LineHistory, KeepsTheNewestLines) {
  const TempFolder folder;
  const auto path = folder.write("history", "\"a\"\n\"b\"\n\"c\"\n");
  EXPECT_EQ(read_line_history(path, 2), (Texts{"b", "c"}));
  EXPECT_EQ(folder.read("history"), "\"b\"\n\"c\"\n");
  EXPECT_EQ(permissions(path), kOwnerReadsAndWrites);
  append_line_history(path, "d");  // by a concurrent chat
  EXPECT_EQ(read_line_history(path, 9), (Texts{"b", "c", "d"}));
}

TEST(LineHistory, ErrorsAreIgnored) {
  const TempFolder folder;
  EXPECT_TRUE(read_line_history({}, 9).empty());
  EXPECT_TRUE(read_line_history(folder / "nothing", 9).empty());
  EXPECT_TRUE(read_line_history(folder.path(), 9).empty());
  EXPECT_EQ(read_line_history(folder.write("odd", "\"a\"\nnonsense\n3\n\"b\""), 9), (Texts{"a", "b"}));
  append_line_history(folder / "odd/below/a/file", "x");
  append_line_history(folder.path(), "x");
}

TEST(LineHistory, IsInTheStateFolder) {
  const auto with = [](const char* state, const char* home) {
    const char* old_home = std::getenv("HOME");
    const std::optional<std::string> kept = old_home ? std::optional<std::string>(old_home) : std::nullopt;
    state ? setenv("XDG_STATE_HOME", state, 1) : unsetenv("XDG_STATE_HOME");
    setenv("HOME", home, 1);
    const auto folder = state_folder();
    kept ? setenv("HOME", kept->c_str(), 1) : unsetenv("HOME");
    unsetenv("XDG_STATE_HOME");
    return folder.string();
  };
  EXPECT_EQ(with("/s", "/h"), "/s/thimble");
  EXPECT_EQ(with(nullptr, "/h"), "/h/.local/state/thimble");
  EXPECT_EQ(with("relative", "/h"), "/h/.local/state/thimble") << "a relative XDG_STATE_HOME must be ignored";
  EXPECT_EQ(with("", ""), "");
}

}  // namespace
}  // namespace thimble
