// The plugin's one symbol.
#include "ops/cuda/fused.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/runtime.h"
#include "ops/cuda_plugin.h"

namespace thimble::cuda {

namespace {

constexpr const PluginOp* kOps[] = {
    &kEmbedding,       &kSmear,      &kRmsNorm,   &kLayerNorm,
    &kLinear,          &kRope,       &kAttention, &kExclusiveAttention,
    &kCachedAttention, &kActivation, &kAddScaled, &kResidualMix,
    &kResidualNorm,    &kGatedSkip,  &kDropout,   &kGather,
    &kSoftcap,         &kHeadLoss,   &kCast,      &kFakeQuant,
};

constexpr FusedRun kFusedRuns[] = {
    {.ops = {"rmsnorm", "residual_mix"}, .backward = true, .kernel = mix_norm_backward},
    {.ops = {"residual_mix", "rmsnorm"}, .kernel = mix_norm_forward},
    {.ops = {"add_scaled", "residual_mix", "rmsnorm"}, .kernel = sum_mix_norm_forward},
};

}  // namespace

}  // namespace thimble::cuda

extern "C" __attribute__((visibility("default"))) const thimble::CudaPlugin* thimble_cuda_plugin() {
  using namespace thimble;
  static const CudaPlugin plugin{
      .abi = kCudaAbi,
      .layout = cuda_layout(),
      .version = THIMBLE_VERSION,
      .open = [](int card) -> std::shared_ptr<DeviceRuntime> {
        return std::make_shared<cuda::CudaRuntime>(card);
      },
      .ops = cuda::kOps,
      .fused_runs = cuda::kFusedRuns,
      .step = cuda::step_kernels(),
  };
  return &plugin;
}
