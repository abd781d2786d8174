#include "cli/line_history.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <span>
#include <tuple>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"

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
  } catch (const std::exception&) {  // it stays long
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
    } catch (const Error&) {  // not ours
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
  // What a full disk leaves of it is no JSON, and is skipped when read.
  if (fchmod(file, 0600) == 0) std::ignore = write(file, text.data(), text.size());
  close(file);
}

}  // namespace thimble
