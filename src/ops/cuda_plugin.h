// The CUDA plugin: libthimble_cuda.so, opened on first use, so that a start without CUDA costs nothing.
//
// It is looked for where THIMBLE_CUDA_PLUGIN says, else beside the binary, in ../lib, and on the loader's path. What it
// hands out is one table; everything behind it lives in ops/cuda/. It stays open until the process ends.
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

// An op's kernels, for the definition of that name.
struct PluginOp {
  std::string_view name;
  Kernels kernels;
};

// Raised whenever the meaning of what crosses the border changes; changes of its layout are seen by themselves.
inline constexpr std::uint32_t kCudaAbi = 5;

// What both sides must agree on, byte for byte: sizes of everything that crosses the border.
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
  // A runtime on a GPU; throws with a hint if there is no driver or no GPU.
  std::shared_ptr<DeviceRuntime> (*open)(int gpu);
  std::span<const PluginOp* const> ops;
  std::span<const FusedRun* const> fused_runs;
  StepKernels step;
};

// The plugin's one symbol: extern "C" const thimble::CudaPlugin* thimble_cuda_plugin();
inline constexpr char kCudaPluginEntry[] = "thimble_cuda_plugin";

// Opens the plugin once. Not there, of another build, or not loadable: an Error that says which.
const CudaPlugin& cuda_plugin();

// Its kernels, by definition: an op that it does not have is not found.
const Backend& cuda_backend();

// The same for one file; what cuda_plugin() does with each candidate.
const CudaPlugin& load_cuda_plugin(const std::filesystem::path& file);

// A GPU, ready for work. Errors as cuda_plugin(), or no driver, or no GPU.
std::shared_ptr<DeviceRuntime> open_cuda(int gpu = 0);

// `auto`: the GPU if there is one, else the CPU, and why.
struct DeviceChoice {
  std::shared_ptr<DeviceRuntime> runtime;
  std::string reason;  // "NVIDIA H200", "no CUDA plugin beside the binary"
};
DeviceChoice choose_device(int gpu = 0);

}  // namespace thimble
