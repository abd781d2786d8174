// The optimizer: gradients clipped, then every parameter updated by the rule that trains it (update_rule.h).
//
// Gradients are scaled so that their global norm, summed in f64, is at most `clip` (0: off).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "dist/communicator.h"
#include "model/params.h"
#include "ops/step_state.h"
#include "optim/update_rule.h"
#include "tensor/arena.h"
#include "tensor/device.h"

namespace thimble {

class Optimizer {
 public:
  Optimizer(const ParamTable& params, const OptimizerConfig& config, const Context& context = Context(),
            RuleList rules = update_rules());

  // One update. `step` counts from 0; `multiplier` is the schedule's. Returns the gradient's norm before clipping; where
  // it is not finite nothing is updated. `sizes`: also how far each group moved, with the same bits.
  double update(const Context& context, std::int64_t step, double multiplier, std::span<float> weights,
                std::span<float> gradients, UpdateSizes* sizes = nullptr);

  // Several ranks: gradients are those of all of them, and rules may share their work out. `ranks` outlives this.
  void share_over(Communicator& ranks) { ranks_ = &ranks; }

  const OptimizerConfig& config() const { return config_; }
  const RuleDefinition& rule_of(const Param& param) const { return *rule_of_[index_of(param)]; }

  // A state of a parameter, in host memory; empty: its rule keeps none of that name.
  std::span<float> state(std::string_view name, const Param& param);
  // All states, from the device that updates them to host memory, and back; they wait.
  void fetch_states();
  void send_states();

  // For a device that updates (device_step.h).
  struct ActiveRule {
    const RuleDefinition* definition;
    std::unique_ptr<UpdateRule> rule;
  };
  std::span<const ActiveRule> rules() const { return active_; }
  RuleMemory memory(const RuleDefinition& rule, float* weights, const float* gradients, Device device) const;

  // What f16 training multiplies the loss by: kept here for checkpoints, though no update in host memory looks at it. A
  // device that trains in f16 changes it.
  LossScale& loss_scale() { return loss_scale_; }

 private:
  // A state's values for the parameters that have it, in the table's order at multiples of 16.
  struct StateBlock {
    std::string_view name;
    std::int64_t size = 0;
    std::vector<std::int64_t> offsets;  // by position in params.all(); -1: none
    std::unique_ptr<FloatArena> values = nullptr;
  };
  std::size_t index_of(const Param& param) const;
  StateBlock& block(std::string_view name);
  const StateBlock* find_block(std::string_view name) const;
  void lay_out_states(const Context& context);

  const ParamTable& params_;
  OptimizerConfig config_;
  std::vector<const RuleDefinition*> rule_of_;  // by position in params.all()
  std::vector<StateBlock> states_;
  std::vector<ActiveRule> active_;
  LossScale loss_scale_;
  Communicator* ranks_ = nullptr;
};

}  // namespace thimble
