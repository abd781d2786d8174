// The plugin's one symbol.
#include "ops/cuda/fused.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/runtime.h"
#include "ops/cuda_plugin.h"

extern "C" __attribute__((visibility("default"))) const thimble::CudaPlugin* thimble_cuda_plugin() {
  using namespace thimble;
  static const CudaPlugin plugin{
      .abi = kCudaAbi,
      .layout = cuda_layout(),
      .version = THIMBLE_VERSION,
      .open = [](int card) -> std::shared_ptr<DeviceRuntime> {
        return std::make_shared<cuda::CudaRuntime>(card);
      },
      .kernels = cuda::kernels,
      .fused = cuda::fused_kernel,
      .scratch_bytes = cuda::scratch_bytes,
      .step = cuda::step_kernels(),
  };
  return &plugin;
}
