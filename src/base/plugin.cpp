#include "base/plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <vector>

#include "base/error.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

// The folder of libthimble.so, if this code runs in it. Empty in a program, whose path dladdr() may
// not know in full.
fs::path folder_of_library() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&folder_of_library), &info) == 0 || !info.dli_fname) return {};
  const fs::path file = info.dli_fname;
  return file.is_absolute() && file.filename().string().starts_with("lib") ? file.parent_path() : fs::path();
}

// Beside the library or the binary, then in ../lib.
std::vector<fs::path> candidate_paths(const std::string& file) {
  std::vector<fs::path> paths;
  if (const fs::path folder = folder_of_library(); !folder.empty()) paths.push_back(folder / file);
  std::error_code ignored;
  const fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  if (folder.empty()) return paths;  // no /proc: do not search the working directory
  paths.push_back(folder / file);
  paths.push_back(folder.parent_path() / "lib" / file);
  return paths;
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
