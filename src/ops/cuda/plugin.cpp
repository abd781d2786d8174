// The plugin's exported symbol and its tables. Each entry is defined below its kernels, in a .cu
// file of this folder or of optim/cuda.
#include "ops/cuda_plugin.h"

#include "ops/cuda/runtime.h"

namespace thimble::cuda {

extern const PluginOp kEmbedding, kSmear, kRmsNorm, kLayerNorm, kLinear, kRope, kAttention,
    kExclusiveAttention, kCachedAttention, kActivation, kAddScaled, kResidualMix, kResidualNorm, kGatedSkip,
    kDropout, kGather, kSoftcap, kHeadLoss, kCast, kFakeQuant, kLowRank;
extern const FusedRun kMixNorm, kMixNormBackward, kSumMixNorm;
extern const RuleKernels kAdam, kMuon;
extern const StepKernels kStep;  // without rules

namespace {

constexpr const PluginOp* kOps[] = {
    &kEmbedding,       &kSmear,      &kRmsNorm,   &kLayerNorm,
    &kLinear,          &kRope,       &kAttention, &kExclusiveAttention,
    &kCachedAttention, &kActivation, &kAddScaled, &kResidualMix,
    &kResidualNorm,    &kGatedSkip,  &kDropout,   &kGather,
    &kSoftcap,         &kHeadLoss,   &kCast,      &kFakeQuant,
    &kLowRank,
};
constexpr const FusedRun* kFusedRuns[] = {&kMixNormBackward, &kMixNorm, &kSumMixNorm};
constexpr const RuleKernels* kRules[] = {&kAdam, &kMuon};

StepKernels step_kernels() {
  StepKernels kernels = kStep;
  kernels.rules = kRules;
  return kernels;
}

}  // namespace

}  // namespace thimble::cuda

extern "C" __attribute__((visibility("default"))) const thimble::CudaPlugin* thimble_cuda_plugin() {
  using namespace thimble;
  static const CudaPlugin plugin{
      .abi = kCudaAbi,
      .layout = cuda_layout(),
      .version = THIMBLE_VERSION,
      .open = [](int gpu) -> std::shared_ptr<DeviceRuntime> {
        return std::make_shared<cuda::CudaRuntime>(gpu);
      },
      .ops = cuda::kOps,
      .fused_runs = cuda::kFusedRuns,
      .step = cuda::step_kernels(),
  };
  return &plugin;
}
