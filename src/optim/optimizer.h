// The optimizer: Adam for everything, or Muon for the matrices of blocks (muon.h) and Adam for the rest.
//
// Gradients are scaled first so that their global norm, summed in f64, is at most `clip` (0: off). Adam reads and
// writes each of weights, gradients and moments once, scaling included.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/config.h"
#include "dist/communicator.h"
#include "model/params.h"
#include "ops/loss_scale.h"
#include "optim/adam.h"
#include "optim/muon.h"
#include "optim/update_size.h"
#include "tensor/arena.h"
#include "tensor/device.h"

namespace thimble {

class Optimizer {
 public:
  Optimizer(const ParamTable& params, const OptimizerConfig& config, const Context& context = Context());

  // One update. `step` counts from 0; `multiplier` is the schedule's. Returns the gradient's norm before
  // clipping; where it is not finite nothing is updated. `sizes`: also how far each group moved, with the same bits.
  double update(const Context& context, std::int64_t step, double multiplier, std::span<float> weights,
                std::span<float> gradients, UpdateSizes* sizes = nullptr);

  // Several ranks: gradients are those of all of them, and Muon's matrices are shared out. `ranks` outlives this.
  void share_over(Communicator& ranks) { ranks_ = &ranks; }

  // What Adam does to a parameter in a step; clipping comes on top.
  AdamStep adam_step(const Param& param, std::int64_t step, double multiplier) const;

  // What Muon does to its matrices in a step; clipping comes on top.
  MuonStep muon_step(std::int64_t step, double multiplier) const;
  const Muon& muon() const { return muon_; }
  const OptimizerConfig& config() const { return config_; }

  // State, laid out like the weights: the first moment (Adam) or momentum (Muon), and the second moment (Adam
  // alone).
  std::span<float> first_moment(const Param& param);
  std::span<float> second_moment(const Param& param);  // empty for what Muon trains
  // All of it, for a device that updates it and for checkpoints that fetch or send it.
  FloatArena& first_moments() { return first_; }
  FloatArena& second_moments() { return second_; }
  std::int64_t second_offset(const Param& param) const;  // in second_moments(); -1: trained by Muon
  // What f16 training multiplies the loss by: part of the state, though no update here looks at it. A device that
  // trains in f16 keeps it (device_step.h).
  LossScale& loss_scale() { return loss_scale_; }
  bool trained_by_muon(const Param& param) const { return Muon::trains(param, config_); }

 private:
  std::int64_t lay_out_second_moments();  // returns their size

  const ParamTable& params_;
  OptimizerConfig config_;
  std::vector<std::int64_t> second_offset_;  // by position in params.all(); -1: none
  FloatArena first_, second_;
  Muon muon_;
  LossScale loss_scale_;
  Communicator* ranks_ = nullptr;
  std::vector<float> before_;  // one parameter, where sizes are asked for
};

}  // namespace thimble
