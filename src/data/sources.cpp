#include "data/sources.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/number.h"
#include "base/text.h"
#include "tokenizer/text_source.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

constexpr double kMaxWeight = 1000;  // times that a source is read

struct Weighted {
  std::string name;
  double weight;
};

// "FILE:2.5". A file that is really called so wins.
std::optional<Weighted> split_weight(std::string_view input) {
  const auto colon = input.rfind(':');
  if (colon == input.npos || colon == 0 || fs::exists(fs::path(input))) return std::nullopt;
  const auto weight = number_in<double>(input.substr(colon + 1));
  if (!weight) return std::nullopt;
  check(std::isfinite(*weight) && *weight > 0 && *weight <= kMaxWeight,
        "the weight in '{}' must be above 0 and at most {}", input, kMaxWeight);
  return Weighted{std::string(input.substr(0, colon)), *weight};
}

std::vector<fs::path> matching(const std::string& pattern) {
  glob_t found{};
  std::vector<fs::path> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0)
    for (std::size_t i = 0; i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  std::ranges::sort(paths);
  return paths;
}

std::string last_ending(const fs::path& file) {
  return lower_case(file.extension().string());
}

// The ending that tells the form: ".jsonl" of "a.jsonl.zst".
std::string ending_of(const fs::path& file) {
  const std::string ending = last_ending(file);
  return ending == ".zst" || ending == ".gz" ? last_ending(file.stem()) : ending;
}

void refuse_foreign(const fs::path& file) {
  const std::string ending = ending_of(file);
  check(ending != ".parquet",
        Hint{fmt::format("convert it first: duckdb -c \"COPY (SELECT * FROM '{}') TO '{}' (FORMAT json)\"",
                         file.string(), fs::path(file).replace_extension(".jsonl").string())},
        "{} is a parquet file, which is not read here; expected text, .jsonl or .json", file.string());
  for (const std::string_view other : {".bz2", ".xz", ".zip", ".tar", ".7z"})
    check(ending != other, Hint{"unpack it, or pack it as .zst or .gz"},
          "{} is an archive of a kind that is not read here", file.string());
}

}  // namespace

DataSource find_source(std::string_view input) {
  check(input != "-", Hint{"write it to a file first: inputs are read twice"},
        "standard input cannot be a source of data");
  DataSource source{.name = std::string(input)};
  if (const auto weighted = split_weight(input)) {
    source.name = weighted->name;
    source.weight = weighted->weight;
    source.weighted = true;
  }
  std::vector<fs::path> paths = {source.name};
  if (!fs::exists(source.name) && source.name.find_first_of("*?[") != std::string::npos) {
    paths = matching(source.name);
    check(!paths.empty(), "no file matches {}", source.name);
  }
  source.files = text_files(paths);
  for (const fs::path& file : source.files) refuse_foreign(file);
  return source;
}

FileForm form_of(const fs::path& file, bool chat) {
  const std::string ending = ending_of(file);
  if (ending == ".json") return FileForm::json_array;
  if (chat || ending == ".jsonl" || ending == ".ndjson") return FileForm::json_lines;
  return FileForm::text;
}

}  // namespace thimble
