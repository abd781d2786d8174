// Adam in one pass: one thread block per chunk of a parameter. The formula is in optim/adam.h.
#include "optim/adam.h"

#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

namespace {

__global__ void __launch_bounds__(kThreads) adam_chunks(const StepState* state, const AdamSettings* settings,
                                                        const AdamChunk* chunks, RuleMemory memory) {
  if (!state->finite) return;
  const AdamChunk chunk = chunks[blockIdx.x];
  const AdamGroup k = settings->groups[chunk.group];
  const float scale = state->grad_scale;
  float *const weights = memory.weights + chunk.offset, *const first = memory.states[0] + chunk.m,
               *const second = memory.states[1] + chunk.v;
  const float* const gradients = memory.gradients + chunk.offset;
  for (int i = threadIdx.x; i < chunk.count; i += kThreads) {
    const float g = gradients[i] * scale;
    const float m = k.beta1 * first[i] + k.rest1 * g;
    const float v = k.beta2 * second[i] + k.rest2 * (g * g);
    weights[i] = weights[i] * k.shrink + k.rate * (m / (sqrtf(v * k.unbias2) + k.eps));
    first[i] = m;
    second[i] = v;
  }
}

void adam(const Context& context, const RuleCall& call) {
  const std::int64_t count = call.count_of<AdamChunk>();
  if (count == 0) return;
  adam_chunks<<<blocks_for(count, 1), kThreads, 0, stream_of(context)>>>(
      call.state, call.settings_as<AdamSettings>(), call.items_as<AdamChunk>(), call.memory);
  launched("adam");
}

}  // namespace

extern const RuleKernels kAdam = {.rule = "adam", .settings_bytes = sizeof(AdamSettings), .update = adam};

}  // namespace thimble::cuda
