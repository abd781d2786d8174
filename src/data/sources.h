// What `data build` is given to read: files, folders and patterns, each with a weight.
//
//   books/            a folder, with everything below it, in the order of names
//   'chats/*.jsonl'   a pattern
//   wiki.txt.zst:2.5  a weight: every document twice, and every second one a third time
//
// Sources without weights are read one after the other. As soon as one has a weight, all are mixed in
// proportion.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

struct DataSource {
  std::string name;  // as it was given, without the weight
  std::vector<std::filesystem::path> files = {};
  double weight = 1;
  bool weighted = false;  // somebody said so
};

// Finds the files. Nothing there, and files of a kind that cannot be read, are errors.
DataSource find_source(std::string_view input);

enum class FileForm { text, json_lines, json_array };

// By the name, without .zst or .gz: .jsonl and .ndjson, .json, everything else. `chat`: whatever is no .json is
// taken for JSON lines.
FileForm form_of(const std::filesystem::path& file, bool chat);

}  // namespace thimble
