// The optimizer: clips gradients and updates every parameter with its rule (update_rule.h).
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

  // Makes one update. `step` counts from 0; `multiplier` comes from the schedule. Returns the
  // gradient norm before clipping. If it is not finite, nothing is updated. With `sizes`, also
  // measures how far each group moved; the weights get the same bits.
  double update(const Context& context, std::int64_t step, double multiplier, std::span<float> weights,
                std::span<float> gradients, UpdateSizes* sizes = nullptr);

  // For several ranks with summed gradients: rules may divide their work among them. `ranks` must
  // outlive this object.
  void share_over(Communicator& ranks) { ranks_ = &ranks; }

  const OptimizerConfig& config() const { return config_; }
  const RuleDefinition& rule_of(const Param& param) const { return *rule_of_[index_of(param)]; }

  // A state of a parameter in host memory; empty if its rule has no state of that name.
  std::span<float> state(std::string_view name, const Param& param);
  // Copy all states from the device to host memory, and back, and wait.
  void fetch_states();
  void send_states();

  // For updates on a device (device_step.h).
  struct ActiveRule {
    const RuleDefinition* definition;
    std::unique_ptr<UpdateRule> rule;
  };
  std::span<const ActiveRule> rules() const { return active_; }
  RuleMemory memory(const RuleDefinition& rule, float* weights, const float* gradients, Device device) const;

  // The loss scale of f16 training. Only a device uses and changes it; it is kept here for
  // checkpoints.
  LossScale& loss_scale() { return loss_scale_; }

 private:
  // The values of one state, for the parameters that have it, in table order, aligned to 16 values.
  struct StateBlock {
    std::string_view name;
    std::int64_t size = 0;
    std::vector<std::int64_t> offsets;  // by index in params.all(); -1: none
    std::unique_ptr<FloatArena> values = nullptr;
  };
  std::size_t index_of(const Param& param) const;
  StateBlock& block(std::string_view name);
  const StateBlock* find_block(std::string_view name) const;
  void lay_out_states(const Context& context);

  const ParamTable& params_;
  OptimizerConfig config_;
  std::vector<const RuleDefinition*> rule_of_;  // by index in params.all()
  std::vector<StateBlock> states_;
  std::vector<ActiveRule> active_;
  LossScale loss_scale_;
  Communicator* ranks_ = nullptr;
};

}  // namespace thimble
