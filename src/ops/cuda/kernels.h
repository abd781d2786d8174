// The CUDA kernels as the plugin hands them out.
#pragma once

#include "graph/op.h"
#include "ops/cuda_plugin.h"
#include "ops/step_state.h"

namespace thimble::cuda {

extern const PluginOp kEmbedding, kSmear, kRmsNorm, kLayerNorm, kLinear, kRope, kAttention,
    kExclusiveAttention, kCachedAttention, kActivation, kAddScaled, kResidualMix, kResidualNorm, kGatedSkip,
    kDropout, kGather, kSoftcap, kHeadLoss, kCast, kFakeQuant;

StepKernels step_kernels();
std::int64_t muon_scratch_bytes(const MuonBatch& batch);
void muon(const Context&, const StepState* state, const MuonBatch& batch, float* weights,
          const float* gradients, float* momenta, std::byte* scratch);

void embedding_forward(const Context&, const OpCall&);
void embedding_backward(const Context&, const OpCall&);
void smear_forward(const Context&, const OpCall&);
void smear_backward(const Context&, const OpCall&);
void rmsnorm_forward(const Context&, const OpCall&);
void rmsnorm_backward(const Context&, const OpCall&);
void layernorm_forward(const Context&, const OpCall&);
void layernorm_backward(const Context&, const OpCall&);
void linear_forward(const Context&, const OpCall&);
void linear_backward(const Context&, const OpCall&);
void rope_forward(const Context&, const OpCall&);
void rope_backward(const Context&, const OpCall&);
void attention_forward(const Context&, const OpCall&);
void attention_backward(const Context&, const OpCall&);
void exclusive_attention_forward(const Context&, const OpCall&);
void exclusive_attention_backward(const Context&, const OpCall&);
void cached_attention_forward(const Context&, const OpCall&);
void activation_forward(const Context&, const OpCall&);
void activation_backward(const Context&, const OpCall&);
void add_scaled_forward(const Context&, const OpCall&);
void add_scaled_backward(const Context&, const OpCall&);
void residual_mix_forward(const Context&, const OpCall&);
void residual_mix_backward(const Context&, const OpCall&);
void residual_norm_forward(const Context&, const OpCall&);
void residual_norm_backward(const Context&, const OpCall&);
void gated_skip_forward(const Context&, const OpCall&);
void gated_skip_backward(const Context&, const OpCall&);
void dropout_forward(const Context&, const OpCall&);
void dropout_backward(const Context&, const OpCall&);
void gather_forward(const Context&, const OpCall&);
void gather_backward(const Context&, const OpCall&);
void softcap_forward(const Context&, const OpCall&);
void softcap_backward(const Context&, const OpCall&);
void head_loss_forward(const Context&, const OpCall&);
void head_loss_backward(const Context&, const OpCall&);
void cast_forward(const Context&, const OpCall&);
void cast_backward(const Context&, const OpCall&);
void fake_quant_forward(const Context&, const OpCall&);
void fake_quant_backward(const Context&, const OpCall&);

}  // namespace thimble::cuda
