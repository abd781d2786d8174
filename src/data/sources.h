// Finds the files of an input and tells what they are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/manifest.h"

namespace thimble {

struct ReadOptions;

struct LeftOut {
  std::filesystem::path file;
  std::string reason;  // "it is a PDF file"
};

// One input of `data build`: a file, folder or pattern, with an optional weight.
//
//   books/            a folder, recursively, sorted by name
//   'chats/*.jsonl'   a pattern
//   wiki.txt.zst:2.5  a weight: every document twice, and half of the documents a third time
//
// Sources without weights are read one after the other. If any source has a weight, all are
// interleaved in proportion.
struct DataSource {
  std::string name;  // the input without the weight
  std::vector<std::filesystem::path> files = {};
  double weight = 1;
  bool weighted = false;               // a weight was given
  std::vector<LeftOut> left_out = {};  // files of a folder that are not read
};

// Finds the files of an input. Files of a folder that are neither text nor chats are left out.
// Throws if no file is left, or if a file that is named itself has an unsupported type.
DataSource find_source(std::string_view input);

// The same for reading with these options: of a folder or pattern that has both texts and chats,
// only files of options.kind are read, and files without the field of the text are left out.
DataSource find_source(std::string_view input, const ReadOptions& options);

// Whether a source contains texts or chats; text if neither is found. Throws if it has both. Text
// is what is not JSON, and records with this field.
DataKind detect_kind(const DataSource& source, std::string_view text_field = "text");

// The participant that becomes the assistant in exports of messengers: `wanted`, or if it is empty
// the one that Participants::likely_assistant() chooses. Empty if there are no such exports. Throws
// if nobody has the wanted name.
std::string assistant_in(std::span<const DataSource> sources, std::string_view wanted);

// A table of the forms of the files with their numbers and sizes, and a list of the files that are
// left out. Empty for a single file.
std::string inputs_text(std::span<const DataSource> sources);

}  // namespace thimble
