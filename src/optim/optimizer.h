// The optimizer: Adam for everything, or Muon for the matrices of blocks and Adam for the rest (parameter-golf 1.4).
//
//   Muon, for W [r, c]:  m = mu m + g,  u = g + mu m (Nesterov)
//                        W = W (1 - lr decay) - lr sqrt(max(1, r/c)) NS5(u)
//
// Gradients are scaled first so that their global norm is at most `clip` (0: off).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"
#include "model/params.h"
#include "tensor/arena.h"
#include "tensor/context.h"

namespace thimble {

class Optimizer {
 public:
  Optimizer(const ParamTable& params, const TrainConfig& config);

  // One update. `step` counts from 0; `multiplier` is the schedule's. Returns the gradient's norm before
  // clipping; where it is not finite nothing is updated.
  double update(const Context& context, std::int64_t step, double multiplier, std::span<float> weights,
                std::span<float> gradients);

  // State, laid out like the weights: the first moment (Adam) or momentum (Muon), and the second moment (Adam
  // alone).
  std::span<float> first_moment(const Param& param);
  std::span<float> second_moment(const Param& param);  // empty for what Muon trains
  bool trained_by_muon(const Param& param) const;

 private:
  std::int64_t lay_out_second_moments();  // returns their size
  void muon(const Context& context, const Param& param, float momentum, float rate, float grad_scale,
            std::span<float> weights, std::span<const float> gradients);

  const ParamTable& params_;
  TrainConfig config_;
  std::vector<std::int64_t> second_offset_;  // by position in params.all(); -1: none
  FloatArena first_, second_;
  std::vector<float> scratch_;  // Muon: the update and Newton-Schulz
};

}  // namespace thimble
