// What an optimizer step on a device reads and writes, in the device's memory: a recorded step takes everything that
// changes from step to step from here.
//
// The host uploads the whole struct before the step (outputs zero) and downloads it after. A gradient norm that is not
// finite skips the update: moments and weights stay as they are, and `finite` says so.
//
// What outlives a step is not in here: the scale of the loss (loss_scale.h), where there is one, has its own place in the
// device's memory, and the step itself sets what the next one is scaled by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/loss_scale.h"
#include "tensor/tensor.h"

namespace thimble {

class Context;

// Adam for one group of parameters, with everything that can be computed once (see optim/adam.h).
struct StepGroup {
  float beta1 = 0, rest1 = 0;  // rest = 1 - beta
  float beta2 = 0, rest2 = 0;
  float rate = 0;     // -lr / (1 - beta1^t)
  float unbias2 = 0;  // 1 / (1 - beta2^t)
  float shrink = 1;   // 1 - lr decay
  float eps = 0;
};

// Muon for its matrices (optim/muon.h).
struct MuonRates {
  float momentum = 0;
  float rate = 0;
  float shrink = 1;  // 1 - rate decay, for matrices that decay
};

inline constexpr int kStepGroups = 16;
inline constexpr double kClipEps = 1e-6;  // as torch.nn.utils.clip_grad_norm_

struct StepState {
  // From the host.
  StepGroup groups[kStepGroups];
  MuonRates muon;
  double clip = 0;  // largest norm of the gradient; 0: no limit

  // From the device.
  double loss = 0;          // sum over rows of weight nats, over all micro-batches
  double squared_norm = 0;  // of the gradient, before clipping
  double norm = 0;
  float grad_scale = 0;  // what clipping multiplies gradients by, and what takes the loss scale out of them
  std::int32_t finite = 0;  // 1: the update was made
  float loss_scale = 0;     // of the next step; 0: the loss is not scaled
};

// A run of parameters that one block of threads updates: no longer than kAdamChunk.
inline constexpr std::int64_t kAdamChunk = 4096;
struct AdamChunk {
  std::int64_t offset = 0;  // in weights, gradients and first moments
  std::int64_t second = 0;  // in second moments
  std::int32_t count = 0;
  std::int32_t group = 0;
};

// Of a round of Newton-Schulz (optim/newton_schulz.h).
struct NewtonSchulzCoefficients {
  double a = 3.4445, b = -4.7750, c = 2.0315;
};

// Matrices of one shape, which Muon updates together. Each is contiguous.
struct MuonMatrix {
  std::int64_t offset = 0;  // in weights, gradients and momenta
  std::int32_t decays = 0;
};
struct MuonBatch {
  std::int64_t rows = 0, cols = 0, count = 0;
  const MuonMatrix* matrices = nullptr;  // [count], the device's
  std::span<const NewtonSchulzCoefficients> rounds;
  DType dtype = DType::f32;  // of Newton-Schulz: f32 or bf16
  bool row_norm = false;
};

// Step kernels of a device. All pointers are the device's; all are queued.
struct StepKernels {
  // Bytes of scratch that sums over `count` values want.
  std::int64_t (*sum_scratch_bytes)(std::int64_t count);
  // *total += sum of values[i] weights[i], in f64 over fixed blocks.
  void (*add_weighted_sum)(const Context&, const float* values, const float* weights, std::int64_t count,
                           double* total, std::byte* scratch);
  // weights[i] *= scale->scale: of rows, and so of the loss and of all gradients.
  void (*scale_rows)(const Context&, const LossScale* scale, float* weights, std::int64_t count);
  // squared_norm, norm, grad_scale and finite, from all gradients. `scale` is what they and the loss were multiplied by:
  // it is taken out of loss and norms, and becomes that of the next step. nullptr: nothing was scaled.
  void (*finish_norm)(const Context&, const float* gradients, std::int64_t count, StepState* state,
                      LossScale* scale, std::byte* scratch);
  // Adam on all chunks, unless the norm was not finite.
  void (*adam)(const Context&, const StepState* state, const AdamChunk* chunks, std::int64_t chunk_count,
               float* weights, const float* gradients, float* first, float* second);
  // Muon on a batch, unless the norm was not finite.
  std::int64_t (*muon_scratch_bytes)(const MuonBatch& batch);
  void (*muon)(const Context&, const StepState* state, const MuonBatch& batch, float* weights,
               const float* gradients, float* momenta, std::byte* scratch);
};

}  // namespace thimble
