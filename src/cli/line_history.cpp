#include "cli/line_history.h"

#include <cstdlib>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxHistoryBytes = 16 << 20;

}  // namespace

fs::path state_folder() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state && fs::path(state).is_absolute()) return fs::path(state) / "thimble";
  const char* home = std::getenv("HOME");
  return home && *home ? fs::path(home) / ".local" / "state" / "thimble" : fs::path();
}

std::vector<std::string> read_line_history(const fs::path& path) {
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
  return lines;
}

void write_line_history(const fs::path& path, std::span<const std::string> lines) {
  std::string content;
  for (const std::string& line : lines) {
    append_json_string(content, line);
    content += '\n';
  }
  try {
    PosixFileOps ops;
    const bool is_new = !fs::exists(path.parent_path());
    make_folders(ops, path.parent_path());
    if (is_new) fs::permissions(path.parent_path(), fs::perms::owner_all);
    write_file(ops, path, content, Existing::replace);
  } catch (const std::exception&) {  // no history next time
  }
}

}  // namespace thimble
