#include "cli/chat_input.h"

#include <cctype>

namespace thimble {

namespace {

constexpr std::string_view kQuotes = "\"\"\"";
constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::string continuation_of(std::string_view prompt) {
  return std::string(prompt.empty() ? 0 : prompt.size() - 1, '.') + (prompt.empty() ? "" : " ");
}

// The block that `text` has begun, its quotes taken away.
Line read_block(LineEditor& lines, std::string text, std::string_view prompt) {
  text.erase(0, kQuotes.size());
  if (text.empty()) {  // the quotes stand alone: the line end behind them is no part of the block
    Line line = lines.read(prompt);
    if (line.end != LineEnd::line) return line;
    text = std::move(line.text);
  }
  while (!text.ends_with(kQuotes)) {
    const Line line = lines.read(prompt);
    if (line.end == LineEnd::interrupted) return line;
    if (line.end == LineEnd::closed) return {LineEnd::line, std::move(text)};
    text += "\n" + line.text;
  }
  text.resize(text.size() - kQuotes.size());
  if (text.ends_with('\n')) text.pop_back();
  return {LineEnd::line, std::move(text)};
}

}  // namespace

Line read_message(LineEditor& lines, std::string_view prompt) {
  Line message = lines.read(prompt);
  if (message.end != LineEnd::line) return message;
  const std::string more = continuation_of(prompt);
  if (message.text.starts_with(kQuotes)) return read_block(lines, std::move(message.text), more);
  while (message.text.ends_with('\\')) {
    message.text.back() = '\n';
    const Line line = lines.read(more);
    if (line.end == LineEnd::interrupted) return line;
    if (line.end == LineEnd::closed) break;
    message.text += line.text;
  }
  return message;
}

std::optional<ChatCommand> parse_chat_command(std::string_view text) {
  if (text.size() < 2 || text[0] != '/' || text[1] == '/' || text.find('\n') != text.npos)
    return std::nullopt;
  const std::size_t blank = std::min(text.find_first_of(kBlanks), text.size());
  return ChatCommand{std::string(text.substr(1, blank - 1)), std::string(trimmed(text.substr(blank)))};
}

std::string_view unescaped_message(std::string_view text) {
  if (text.starts_with("//")) text.remove_prefix(1);
  return text;
}

std::string terminal_safe(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool c1 = byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c1) ++i;  // U+0080 to U+009F: two bytes
    if (c1 || byte == 0x7F || (byte < 0x20 && byte != '\n' && byte != '\t'))
      out += kReplacement;
    else
      out += text[i];
  }
  return out;
}

}  // namespace thimble
