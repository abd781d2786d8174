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
// Several ranks share the matrices out, the n-th of all batches to rank n mod ranks: each makes its own u orthogonal, and
// all u are gathered (parameter-golf 1.4). Momenta and weights are everyone's, so what a rank holds does not depend on
// how many there are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/config.h"
#include "dist/communicator.h"
#include "model/params.h"
#include "optim/newton_schulz.h"
#include "optim/update_size.h"
#include "tensor/arena.h"
#include "tensor/device.h"

namespace thimble {

struct MuonStep {
  float momentum = 0.95f, rate = 0, grad_scale = 1;
};

class Muon {
 public:
  // Trains the parameters for which `trains` says so.
  Muon(const ParamTable& params, const OptimizerConfig& config);

  static bool trains(const Param& param, const OptimizerConfig& config) {
    return config.uses_muon() && param.group == ParamGroup::matrix;
  }

  // Matrices of one shape, in the table's order.
  struct Batch {
    std::int64_t rows, cols;
    std::vector<const Param*> params;
    std::size_t first = 0;  // how many matrices the batches before it have
    std::int64_t stride() const { return align_up(rows * cols, 16); }  // from one u to the next
  };
  const std::vector<Batch>& batches() const { return batches_; }
  const std::vector<NewtonSchulzCoefficients>& rounds() const { return rounds_; }

  // On the CPU. All blocks are laid out as the table says. `sizes` may be null.
  void update(const Context& context, const MuonStep& step, std::span<float> weights,
              std::span<const float> gradients, std::span<float> momenta, UpdateSizes* sizes,
              Communicator* ranks = nullptr);

  // Whose matrix is number `index` of a batch.
  static int owner(const Batch& batch, std::size_t index, int ranks) {
    return static_cast<int>((batch.first + index) % static_cast<std::size_t>(ranks));
  }

 private:
  // body(param, its u, first, last) for pieces of the elements of matrices [begin, end) of the batch, in parallel.
  template <class Body>
  void for_pieces(const Batch& batch, std::size_t begin, std::size_t end, Body body);
  void add_momentum(const Batch& batch, const MuonStep& step, std::span<const float> gradients,
                    std::span<float> momenta);
  void normalise_rows(const Batch& batch);
  void make_orthogonal(const Context& context, const Batch& batch, Communicator* ranks);
  void apply(const Batch& batch, std::size_t begin, std::size_t end, const MuonStep& step,
             std::span<float> weights);
  float* update_of(const Batch& batch, std::size_t index) {
    return updates_.data() + static_cast<std::int64_t>(index) * batch.stride();
  }

  OptimizerConfig config_;
  std::vector<NewtonSchulzCoefficients> rounds_;
  DType dtype_;  // of Newton-Schulz
  std::vector<Batch> batches_;
  std::vector<float> updates_;  // u of a batch
  std::vector<float> scratch_;  // of Newton-Schulz
  std::vector<float> before_;   // one matrix, where sizes are asked for
};

}  // namespace thimble
