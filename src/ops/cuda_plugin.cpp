#include "ops/cuda_plugin.h"

#include "base/error.h"
#include "base/machine.h"
#include "base/plugin.h"

namespace thimble {

namespace {

PluginName plugin_name() {
  return {.called = "CUDA",
          .file = "libthimble_cuda.so",
          .variable = "THIMBLE_CUDA_PLUGIN",
          .entry = kCudaPluginEntry,
          .build = "build it (-DTHIMBLE_CUDA=ON, with CUDA 13)",
          .needs = "the plugin needs CUDA 13's libcublasLt.so.13"};
}

}  // namespace

const CudaPlugin& load_cuda_plugin(const std::filesystem::path& file) {
  const CudaPlugin& plugin = *static_cast<const CudaPlugin*>(open_plugin(plugin_name(), file));
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
    const CudaPlugin& found = load_cuda_plugin(find_plugin(plugin_name()));
    set_cuda_kernels(found.kernels);
    return found;
  }();
  return plugin;
}

std::shared_ptr<DeviceRuntime> open_cuda(int card) {
  return cuda_plugin().open(card);
}

DeviceChoice choose_device(int card) {
  try {
    std::shared_ptr<DeviceRuntime> runtime = open_cuda(card);
    const std::string name = runtime->facts().name;
    return {std::move(runtime), name};
  } catch (const Error& error) {
    return {cpu_runtime(), error.what()};
  }
}

}  // namespace thimble
