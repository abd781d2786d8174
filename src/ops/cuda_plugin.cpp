#include "ops/cuda_plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "base/version.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

constexpr char kFileName[] = "libthimble_cuda.so";
constexpr char kVariable[] = "THIMBLE_CUDA_PLUGIN";

// Beside the binary, then in ../lib.
std::vector<fs::path> places() {
  std::error_code ignored;
  const fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  if (folder.empty()) return {};  // without /proc: not whatever lies in the working folder
  return {folder / kFileName, folder.parent_path() / "lib" / kFileName};
}

bool loader_knows(const char* name) {
  void* library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (library) dlclose(library);
  return library != nullptr;
}

const CudaPlugin& find_plugin() {
  if (const char* named = std::getenv(kVariable); named && *named) return load_cuda_plugin(named);
  std::error_code ignored;
  for (const fs::path& file : places())
    if (fs::exists(file, ignored)) return load_cuda_plugin(file);
  if (loader_knows(kFileName)) return load_cuda_plugin(kFileName);
  fail(Hint{fmt::format("build it (-DTHIMBLE_CUDA=ON, with CUDA 13), or name the file in {}", kVariable)},
       "there is no CUDA plugin: no {} beside the binary, in ../lib or on the loader's path", kFileName);
}

}  // namespace

const CudaPlugin& load_cuda_plugin(const fs::path& file) {
  // Symbols stay inside: the plugin brings its own copies of what both sides are made of.
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) {
    const std::string why = dlerror();
    fail(Hint{"the plugin needs CUDA 13's libcublasLt.so.13; see that the loader finds it (LD_LIBRARY_PATH)"},
         "the CUDA plugin cannot be loaded: {}", why);
  }
  using Entry = const CudaPlugin* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, kCudaPluginEntry));
  check(entry != nullptr, "{} is no CUDA plugin of thimble: it has no {}", file.string(), kCudaPluginEntry);
  const CudaPlugin& plugin = *entry();
  check(plugin.abi == kCudaAbi && plugin.layout == cuda_layout() && plugin.version == version(),
        Hint{"build the binary and the plugin together"},
        "{} is of another build: version {}, interface {}.{:x}; the binary is {}, {}.{:x}", file.string(),
        plugin.abi == kCudaAbi ? plugin.version : "?", plugin.abi, plugin.layout, version(), kCudaAbi,
        cuda_layout());
  return plugin;
}

const CudaPlugin& cuda_plugin() {
  // An open library is the process's, not ours: opening it once is all there is to share.
  static const CudaPlugin& plugin = []() -> const CudaPlugin& {
    const CudaPlugin& found = find_plugin();
    set_cuda_kernels(found.kernels);
    return found;
  }();
  return plugin;
}

std::shared_ptr<DeviceRuntime> open_cuda(int card) {
  return cuda_plugin().open(card);
}

DeviceChoice choose_device() {
  try {
    std::shared_ptr<DeviceRuntime> runtime = open_cuda();
    const std::string name = runtime->facts().name;
    return {std::move(runtime), name};
  } catch (const Error& error) {
    return {cpu_runtime(), error.what()};
  }
}

}  // namespace thimble
