#include "cli/line_editor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <span>
#include <tuple>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxHistoryBytes = 16 << 20;

std::string as_line(std::string_view text) {
  std::string line;
  append_json_string(line, text);
  return line + '\n';
}

void replace_history(const fs::path& path, std::span<const std::string> lines) {
  std::string content;
  for (const std::string& line : lines) content += as_line(line);
  try {
    PosixFileOps ops;
    write_file(ops, path, content, Existing::replace);
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  } catch (const std::exception&) {  // the file stays long
  }
}

}  // namespace

fs::path state_folder() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state && fs::path(state).is_absolute()) return fs::path(state) / "thimble";
  const char* home = std::getenv("HOME");
  return home && *home ? fs::path(home) / ".local" / "state" / "thimble" : fs::path();
}

std::vector<std::string> read_line_history(const fs::path& path, std::size_t most) {
  std::vector<std::string> lines;
  std::string content;
  try {
    if (path.empty() || !fs::is_regular_file(path)) return lines;
    content = read_file(path, kMaxHistoryBytes);
  } catch (const std::exception&) {
    return lines;
  }
  for (std::size_t begin = 0; begin < content.size();) {
    const std::size_t end = std::min(content.find('\n', begin), content.size());
    try {
      lines.push_back(
          parse_json(std::string_view(content).substr(begin, end - begin), "history").as_string());
    } catch (const Error&) {  // not a history line
    }
    begin = end + 1;
  }
  if (lines.size() > most) {
    lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(most));
    replace_history(path, lines);
  }
  return lines;
}

void append_line_history(const fs::path& path, std::string_view line) {
  try {
    PosixFileOps ops;
    const bool is_new = !fs::exists(path.parent_path());
    make_folders(ops, path.parent_path());
    if (is_new) fs::permissions(path.parent_path(), fs::perms::owner_all);
  } catch (const std::exception&) {
    return;
  }
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return;
  const std::string text = as_line(line);
  // A line cut off by a full disk is not valid JSON and is skipped when read.
  if (fchmod(file, 0600) == 0) std::ignore = write(file, text.data(), text.size());
  close(file);
}

namespace {

constexpr std::size_t kLongestLine = 16 << 20;

class PlainLines : public LineEditor {
 public:
  PlainLines(bool shows_prompt, const Interrupt& interrupt)
      : shows_prompt_(shows_prompt), interrupt_(interrupt) {}

  Line read(std::string_view prompt) override {
    if (shows_prompt_) show(prompt);
    for (;;) {
      if (const std::size_t end = waiting_.find('\n', searched_); end != std::string::npos)
        return take(end, end + 1);
      searched_ = waiting_.size();
      check(waiting_.size() <= kLongestLine, "expected lines of at most {} bytes, found a longer one",
            kLongestLine);
      std::array<char, 65536> block;
      const ssize_t count = ::read(STDIN_FILENO, block.data(), block.size());
      if (count > 0)
        waiting_.append(block.data(), static_cast<std::size_t>(count));
      else if (count == 0)
        return waiting_.empty() ? Line{} : take(waiting_.size(), waiting_.size());
      else if (errno != EINTR)
        fail("cannot read standard input: {}", std::strerror(errno));
      else if (interrupt_.requested())
        return {LineEnd::interrupted};
    }
  }

 private:
  static void show(std::string_view prompt) {
    if (write(STDOUT_FILENO, prompt.data(), prompt.size()) < 0)
      return;  // a prompt that cannot be written is not an error
  }

  Line take(std::size_t end, std::size_t next) {
    if (end > 0 && waiting_[end - 1] == '\r') --end;
    Line line{LineEnd::line, waiting_.substr(0, end)};
    waiting_.erase(0, next);
    searched_ = 0;
    return line;
  }

  bool shows_prompt_;
  const Interrupt& interrupt_;
  std::string waiting_;
  std::size_t searched_ = 0;  // bytes that contain no newline
};

}  // namespace

std::unique_ptr<LineEditor> make_plain_lines(bool shows_prompt, const Interrupt& interrupt) {
  return std::make_unique<PlainLines>(shows_prompt, interrupt);
}

std::unique_ptr<LineEditor> make_line_editor(const EditorOptions& options, const Interrupt& interrupt) {
#ifdef THIMBLE_LIBEDIT
  if (auto lines = make_libedit_lines(options, interrupt)) return lines;
#endif
  (void)options;
  return make_plain_lines(true, interrupt);
}

namespace {

constexpr std::string_view kQuotes = "\"\"\"";

std::string continuation_of(std::string_view prompt) {
  return std::string(prompt.empty() ? 0 : prompt.size() - 1, '.') + (prompt.empty() ? "" : " ");
}

// Reads the rest of the block that `text` starts, and removes the quotes.
Message read_block(LineEditor& lines, std::string text, std::string_view prompt) {
  text.erase(0, kQuotes.size());
  if (text.empty()) {  // quotes alone on a line: the newline is not part of the block
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
  return ChatCommand{std::string(text.substr(1, blank - 1)), std::string(trim(text.substr(blank)))};
}

std::string_view unescaped_message(std::string_view text) {
  if (text.starts_with("//") && text.find('\n') == text.npos) text.remove_prefix(1);
  return text;
}

}  // namespace thimble
