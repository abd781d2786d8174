// The CUDA plugin, libthimble_cuda.so. base/plugin.h describes how it is found and opened; the
// environment variable is THIMBLE_CUDA_PLUGIN. It exports one table, implemented in ops/cuda/.
//
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "graph/op.h"
#include "ops/step_state.h"
#include "tensor/device.h"

namespace thimble {

// The kernels of the op with this name.
struct PluginOp {
  std::string_view name;
  Kernels kernels;
};

// Increase it when the meaning of shared data changes. Layout changes are detected by
// cuda_layout().
inline constexpr std::uint32_t kCudaAbi = 5;

// A hash of the sizes of all types shared by the binary and the plugin; both sides must agree.
constexpr std::uint64_t cuda_layout() {
  std::uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  for (const std::size_t size :
       {sizeof(Tensor), sizeof(OpCall), sizeof(Attributes), sizeof(Context), sizeof(Kernels),
        sizeof(StepState), sizeof(LossScale), sizeof(RuleCall), sizeof(RuleKernels), sizeof(DeviceFacts),
        sizeof(PluginOp), sizeof(FusedRun)})
    hash = (hash ^ size) * 0x100000001B3u;
  return hash;
}

struct CudaPlugin {
  std::uint32_t abi;
  std::uint64_t layout;
  const char* version;  // of thimble
  // Opens a GPU; throws with a hint if there is no driver or no GPU.
  std::shared_ptr<DeviceRuntime> (*open)(int gpu);
  std::span<const PluginOp* const> ops;
  std::span<const FusedRun* const> fused_runs;
  StepKernels step;
};

// The plugin's one symbol: extern "C" const thimble::CudaPlugin* thimble_cuda_plugin();
inline constexpr char kCudaPluginEntry[] = "thimble_cuda_plugin";

// Opens the plugin once. Throws if it is missing, from another build, or not loadable.
const CudaPlugin& cuda_plugin();

// The plugin's kernels. find() returns nullptr for ops without a CUDA kernel.
const Backend& cuda_backend();

// Opens and checks one plugin file; cuda_plugin() calls it for the file that it finds.
const CudaPlugin& load_cuda_plugin(const std::filesystem::path& file);

// Opens a GPU. Throws like cuda_plugin(), and if there is no driver or no GPU.
std::shared_ptr<DeviceRuntime> open_cuda(int gpu = 0);

// `--device auto`: the GPU if there is one, otherwise the CPU, with the reason for the choice.
struct DeviceChoice {
  std::shared_ptr<DeviceRuntime> runtime;
  std::string reason;  // "NVIDIA H200", "no CUDA plugin beside the binary"
};
DeviceChoice choose_device(int gpu = 0);

}  // namespace thimble
