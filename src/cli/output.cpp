#include "cli/output.h"

#include "base/error.h"
#include "cli/parse.h"

namespace thimble {

Option output_option(std::string_view help) {
  return {.name = "output", .letter = 'o', .value = "FILE", .help = help, .required = true};
}

Output output_from(const Arguments& arguments, FileOps& ops, Writes writes) {
  const bool force = arguments.flag("force");
  Output output{arguments.path("output"), force ? Existing::replace : Existing::refuse};
  if (!output.path.has_filename()) output.path = output.path.parent_path();  // "folder/"
  const PathKind kind = ops.kind(output.path);
  check(writes == Writes::folder || kind != PathKind::folder, Hint{"name a file with -o"},
        "cannot write {}: it is a folder", output.path.string());
  if (!force && kind != PathKind::nothing)
    fail(Hint{"name another file with -o, or pass --force"}, "{} exists already", output.path.string());
  return output;
}

}  // namespace thimble
