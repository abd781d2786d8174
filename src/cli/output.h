// Where a command writes: -o FILE and --force.
#pragma once

#include <filesystem>

#include "base/files.h"
#include "cli/option.h"

namespace thimble {

class Arguments;

struct Output {
  std::filesystem::path path;
  Existing existing = Existing::refuse;
};

Option output_option(std::string_view help);  // -o, required

enum class Writes { file, folder };

// Refuses a file that exists now, and a folder in the place of a file, before any work is done; writing it checks again. The folders above are made when
// there is something to write: make_folders(ops, folder_of(output.path)).
Output output_from(const Arguments& arguments, FileOps& ops, Writes writes = Writes::file);

}  // namespace thimble
