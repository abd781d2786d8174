#include "ops/cuda_plugin.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/machine.h"
#include "base/plugin.h"
#include "ops/table.h"

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
  check(
      plugin.abi == kCudaAbi && plugin.layout == cuda_layout() && plugin.version == version(),
      Hint{"build the binary and the plugin together"},
      "{} is from another build: version {}, interface {}.{:x}; the binary has version {}, interface {}.{:x}",
      file.string(), plugin.abi == kCudaAbi ? plugin.version : "?", plugin.abi, plugin.layout, version(),
      kCudaAbi, cuda_layout());
  for (const PluginOp* op : plugin.ops)
    check(std::ranges::any_of(all_ops(), [&](const OpDefinition* known) { return known->name == op->name; }),
          Hint{"build the binary and the plugin together"},
          "{} is from another build: it has kernels for '{}', which the binary does not define",
          file.string(), op->name);
  return plugin;
}

const CudaPlugin& cuda_plugin() {
  // The process keeps an open library, so opening it once is sufficient.
  static const CudaPlugin& plugin = load_cuda_plugin(find_plugin(plugin_name()));
  return plugin;
}

const Backend& cuda_backend() {
  static const auto kernels = [] {
    std::map<std::string_view, const Kernels*> found;
    for (const PluginOp* op : cuda_plugin().ops) found[op->name] = &op->kernels;
    return found;
  }();
  static const Backend backend = {.name = "cuda",
                                  .find = [](const OpDefinition& op) -> const Kernels* {
                                    const auto found = kernels.find(op.name);
                                    return found == kernels.end() ? nullptr : found->second;
                                  },
                                  .fused_runs = cuda_plugin().fused_runs};
  return backend;
}

std::shared_ptr<DeviceRuntime> open_cuda(int gpu) {
  return cuda_plugin().open(gpu);
}

DeviceChoice choose_device(int gpu) {
  try {
    std::shared_ptr<DeviceRuntime> runtime = open_cuda(gpu);
    const std::string name = runtime->facts().name;
    return {std::move(runtime), name};
  } catch (const Error& error) {
    return {cpu_runtime(), error.what()};
  }
}

}  // namespace thimble
