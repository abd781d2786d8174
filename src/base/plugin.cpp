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
std::vector<fs::path> places(const std::string& file) {
  std::error_code ignored;
  const fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  if (folder.empty()) return {};  // without /proc: not whatever lies in the working folder
  return {folder / file, folder.parent_path() / "lib" / file};
}

bool loader_knows(const char* name) {
  void* library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (library) dlclose(library);
  return library != nullptr;
}

}  // namespace

fs::path find_plugin(const PluginName& name) {
  if (const char* named = std::getenv(name.variable.c_str()); named && *named) return named;
  std::error_code ignored;
  for (const fs::path& file : places(name.file))
    if (fs::exists(file, ignored)) return file;
  if (loader_knows(name.file.c_str())) return name.file;
  fail(Hint{fmt::format("{}, or name the file in {}", name.build, name.variable)},
       "there is no {} plugin: no {} beside the binary, in ../lib or on the loader's path", name.called,
       name.file);
}

const void* open_plugin(const PluginName& name, const fs::path& file) {
  // Symbols stay inside: the plugin brings its own copies of what both sides are made of.
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) {
    const std::string why = dlerror();
    fail(Hint{fmt::format("{}; see that the loader finds it (LD_LIBRARY_PATH)", name.needs)},
         "the {} plugin cannot be loaded: {}", name.called, why);
  }
  using Entry = const void* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, name.entry.c_str()));
  check(entry != nullptr, "{} is no {} plugin of thimble: it has no {}", file.string(), name.called,
        name.entry);
  return entry();
}

}  // namespace thimble
