#include "support/golden.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "base/files.h"
#include "base/json.h"
#include "support/run_binary.h"

namespace thimble {

namespace {

constexpr std::uint64_t kMaxGoldenBytes = 16 << 20;

// The line that contains the offset, quoted so that tabs, escapes and trailing spaces are visible.
std::string line_around(std::string_view text, std::size_t offset) {
  if (offset >= text.size()) return "(the text ends here)";
  const std::size_t start = offset == 0 ? 0 : text.rfind('\n', offset - 1) + 1;  // npos + 1 is 0
  const std::size_t end = std::min(text.find('\n', offset), text.size() - 1) + 1;
  std::string quoted;
  append_json_string(quoted, text.substr(start, end - start));
  return quoted;
}

bool update_requested() {
  const char* value = std::getenv("THIMBLE_UPDATE_GOLDEN");
  return value && std::string_view(value) == "1";
}

}  // namespace

std::string first_difference(std::string_view expected, std::string_view actual) {
  const auto [e, a] = std::mismatch(expected.begin(), expected.end(), actual.begin(), actual.end());
  if (e == expected.end() && a == actual.end()) return "";
  const auto offset = static_cast<std::size_t>(e - expected.begin());
  const auto line = 1 + std::count(expected.begin(), e, '\n');
  return fmt::format("line {} differs (byte {})\n  expected: {}\n  found:    {}", line, offset,
                     line_around(expected, offset), line_around(actual, offset));
}

testing::AssertionResult matches_golden_file(std::string_view actual, const std::filesystem::path& path,
                                             bool update) {
  PosixFileOps ops;
  if (update) {
    make_folders(ops, path.parent_path());
    write_file(ops, path, actual, Existing::replace);
    return testing::AssertionSuccess();
  }
  if (!std::filesystem::exists(path))
    return testing::AssertionFailure() << path.string() << " is missing; THIMBLE_UPDATE_GOLDEN=1 writes it";
  const std::string difference = first_difference(read_file(path, kMaxGoldenBytes), actual);
  if (difference.empty()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << path.string() << ": " << difference
                                     << "\nIf the new text is right: THIMBLE_UPDATE_GOLDEN=1";
}

std::filesystem::path golden_path(std::string_view name) {
  return source_folder() / "tests" / "golden" / name;
}

testing::AssertionResult matches_golden(std::string_view actual, std::string_view name) {
  return matches_golden_file(actual, golden_path(name), update_requested());
}

std::optional<std::filesystem::path> shared_path(std::string_view relative) {
  std::filesystem::path path = (source_folder() / ".." / "shared" / relative).lexically_normal();
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path;
}

std::vector<std::filesystem::path> golden_and_shared(std::initializer_list<std::string_view> golden,
                                                     std::initializer_list<std::string_view> shared) {
  std::vector<std::filesystem::path> files;
  for (const std::string_view name : golden) files.push_back(golden_path(name));
  for (const std::string_view name : shared)
    if (const auto path = shared_path(name)) files.push_back(*path);
  return files;
}

std::string name_of_file(const std::filesystem::path& file) {
  const std::filesystem::path tests = source_folder() / "tests";
  const bool is_golden = file.string().starts_with(tests.string());
  const std::filesystem::path root = is_golden ? tests : source_folder().parent_path();
  std::string name = file.lexically_relative(root).string();
  std::ranges::replace_if(
      name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
}

}  // namespace thimble
