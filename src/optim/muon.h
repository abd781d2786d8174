// Muon: momentum made orthogonal, for the matrices of blocks (parameter-golf 1.4, 2.6, 2.20).
//
//   m = mu m + g,  u = g + mu m                             (Nesterov; g already times the clipping's factor)
//   each row of u divided by its length, at least 1e-7      (muon_row_norm: MuonEq-R)
//   W = W (1 - lr decay) - lr sqrt(max(1, r/c)) NS(u)       W [r, c]
//
// NS is Newton-Schulz (optim/newton_schulz.h), in bf16 where that is asked for and the processor multiplies it, with
// Jordan's coefficients in every round, or with Polar Express's, which differ from round to round. Matrices of one
// shape are one batch: their momenta and updates run in one parallel pass, and their u lie one behind the other.
//
// mu warms up on a line from muon_momentum_start to muon_momentum over muon_momentum_steps.
//
// Several ranks share the matrices out, the n-th of all batches to rank n mod ranks (parameter-golf 1.4). On the CPU each
// rank makes its own u orthogonal, and all u are gathered: momenta and weights are everyone's, so what a rank holds does
// not depend on how many there are. On a device the owner updates its matrices and sends the new weights to all.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"
#include "optim/newton_schulz.h"
#include "tensor/tensor.h"

namespace thimble {

struct RuleDefinition;
namespace rule {
extern const RuleDefinition kMuon;  // trains the matrices of blocks where muon_steps is not 0
}  // namespace rule

// mu at a step, counted from 0.
double muon_momentum_at(const OptimizerConfig& config, std::int64_t step);

// On a device: what changes with every step.
struct MuonSettings {
  float momentum = 0;
  float rate = 0;
  float shrink = 1;  // 1 - rate decay, for matrices that decay
};

// An item: a matrix, contiguous.
struct MuonMatrix {
  std::int64_t offset = 0;  // in weights and gradients
  std::int64_t m = 0;       // in the momenta
  std::int32_t decays = 0;
};

// Matrices of one shape, which are updated together.
struct MuonBatch {
  std::int64_t rows = 0, cols = 0;
  std::int64_t first = 0, count = 0;  // among the items
};

struct MuonPlan {
  std::vector<MuonBatch> batches;
  std::vector<NewtonSchulzCoefficients> rounds;
  DType dtype = DType::f32;  // of Newton-Schulz: f32 or bf16
  bool row_norm = false;
};

}  // namespace thimble
