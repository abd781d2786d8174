#include "cli/chat_input.h"

#include <algorithm>

#include "base/text.h"

namespace thimble {

namespace {

constexpr std::string_view kQuotes = "\"\"\"";

std::string continuation_of(std::string_view prompt) {
  return std::string(prompt.empty() ? 0 : prompt.size() - 1, '.') + (prompt.empty() ? "" : " ");
}

// The block that `text` has begun, its quotes taken away.
Message read_block(LineEditor& lines, std::string text, std::string_view prompt) {
  text.erase(0, kQuotes.size());
  if (text.empty()) {  // the quotes stand alone: the line end behind them is no part of the block
    Line line = lines.read(prompt);
    if (line.end != LineEnd::line) return {line.end};
    text = std::move(line.text);
  }
  while (!text.ends_with(kQuotes)) {
    const Line line = lines.read(prompt);
    if (line.end == LineEnd::interrupted) return {line.end};
    if (line.end == LineEnd::closed) return {LineEnd::line, std::move(text), true};
    text += "\n" + line.text;
  }
  text.resize(text.size() - kQuotes.size());
  if (text.ends_with('\n')) text.pop_back();
  return {LineEnd::line, std::move(text), true};
}

}  // namespace

Message read_message(LineEditor& lines, std::string_view prompt) {
  Line first = lines.read(prompt);
  Message message{first.end, std::move(first.text)};
  if (message.end != LineEnd::line) return message;
  const std::string more = continuation_of(prompt);
  if (message.text.starts_with(kQuotes)) return read_block(lines, std::move(message.text), more);
  while (message.text.ends_with('\\')) {
    message.text.back() = '\n';
    const Line line = lines.read(more);
    if (line.end == LineEnd::interrupted) return {line.end};
    if (line.end == LineEnd::closed) break;
    message.text += line.text;
  }
  return message;
}

std::optional<ChatCommand> parse_chat_command(std::string_view text) {
  if (text.size() < 2 || text[0] != '/' || text[1] == '/' || text.find('\n') != text.npos)
    return std::nullopt;
  const std::size_t blank = std::min(text.find_first_of(kBlanks), text.size());
  return ChatCommand{std::string(text.substr(1, blank - 1)), std::string(without_blanks(text.substr(blank)))};
}

std::string_view unescaped_message(std::string_view text) {
  if (text.starts_with("//") && text.find('\n') == text.npos) text.remove_prefix(1);
  return text;
}

}  // namespace thimble
