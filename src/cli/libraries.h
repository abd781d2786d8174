// The libraries that thimble is made with, and their versions.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace thimble {

struct Library {
  std::string name;
  std::optional<std::string> version;  // the one that runs, wherever a library can tell; absent: it cannot
};
std::vector<Library> libraries();

// What a build may have and this one has not.
struct MissingLibrary {
  std::string name, reason;
};
std::vector<MissingLibrary> missing_libraries();

}  // namespace thimble
