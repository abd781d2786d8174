#include "base/plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <vector>

#include "base/error.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

// Beside the binary, then in ../lib.
std::vector<fs::path> candidate_paths(const std::string& file) {
  std::error_code ignored;
  const fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  if (folder.empty()) return {};  // no /proc: do not search the working directory
  return {folder / file, folder.parent_path() / "lib" / file};
}

bool loader_finds(const char* name) {
  void* library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (library) dlclose(library);
  return library != nullptr;
}

}  // namespace

fs::path find_plugin(const PluginName& name) {
  if (const char* named = std::getenv(name.variable.c_str()); named && *named) return named;
  std::error_code ignored;
  for (const fs::path& file : candidate_paths(name.file))
    if (fs::exists(file, ignored)) return file;
  if (loader_finds(name.file.c_str())) return name.file;
  fail(Hint{fmt::format("{}, or set {} to its path", name.build, name.variable)},
       "cannot find the {} plugin: {} is not beside the binary, in ../lib or on the loader's path",
       name.called, name.file);
}

const void* open_plugin(const PluginName& name, const fs::path& file) {
  // RTLD_LOCAL: the plugin links its own copies of the code that both sides share.
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) {
    const std::string why = dlerror();
    fail(Hint{fmt::format("{}; check that the loader can find it (LD_LIBRARY_PATH)", name.needs)},
         "the {} plugin cannot be loaded: {}", name.called, why);
  }
  using Entry = const void* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, name.entry.c_str()));
  check(entry != nullptr, "{} is not a {} plugin for thimble: it does not define {}", file.string(),
        name.called, name.entry);
  return entry();
}

}  // namespace thimble
