// Muon: orthogonalized momentum, for the matrices of blocks.
//
//   m = mu m + g,  u = g + mu m                             (Nesterov; g is already clipped)
//   each row of u divided by its length, at least 1e-7      (muon_row_norm: MuonEq-R)
//   W = W (1 - lr decay) - lr sqrt(max(1, r/c)) NS(u)       W [r, c]
//
// NS is Newton-Schulz (optim/newton_schulz.h). It runs in bf16 if configured and if the processor
// multiplies bf16, with Jordan's coefficients in every round, with those of Polar Express, which
// differ from round to round, or with no round, where NS(u) = u / (|u|_F + 1e-7). Matrices of one
// shape form a batch: one parallel pass updates their momenta and computes their u, which are
// stored consecutively.
//
// mu increases linearly from muon_momentum_start to muon_momentum over muon_momentum_steps.
//
// Several ranks divide the matrices: the n-th matrix over all batches belongs to rank n mod ranks.
// On the CPU each rank orthogonalizes its own u, and all u are gathered; momenta and weights are
// the same on all ranks, so a checkpoint does not depend on the number of ranks. On a device, the
// owner updates its matrices and sends the new weights to all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"
#include "optim/newton_schulz.h"
#include "tensor/tensor.h"

namespace thimble {

struct RuleDefinition;
namespace rule {
extern const RuleDefinition kMuon;  // trains the matrices of blocks unless muon_steps is 0
}  // namespace rule

// mu at a step. Steps count from 0.
double muon_momentum_at(const OptimizerConfig& config, std::int64_t step);

// For devices: the values that change with every step.
struct MuonSettings {
  float momentum = 0;
  float rate = 0;
  float shrink = 1;  // 1 - rate decay, for matrices with weight decay
};

// An item: a contiguous matrix.
struct MuonMatrix {
  std::int64_t offset = 0;  // in the weights and gradients
  std::int64_t m = 0;       // in the momenta
  std::int32_t decays = 0;
};

// Matrices of one shape, updated together.
struct MuonBatch {
  std::int64_t rows = 0, cols = 0;
  std::int64_t first = 0, count = 0;  // index range of its items
};

struct MuonPlan {
  std::vector<MuonBatch> batches;
  std::vector<NewtonSchulzCoefficients> rounds;
  DType dtype = DType::f32;  // of Newton-Schulz: f32 or bf16
  bool row_norm = false;
};

}  // namespace thimble
