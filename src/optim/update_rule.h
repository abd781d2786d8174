// An update rule: one definition that says all there is to know about how parameters are updated.
//
// optim/update_rule.cpp lists the product's rules; a parameter belongs to the first one that trains it. The optimizer,
// checkpoints, the queued step of a device and the account of memory ask definitions; nothing outside of a rule's own
// files knows it by name. docs/design.md shows how to add one.
//
// A rule on a device is three things: items, uploaded once (which parts of which parameters this rank updates), settings,
// uploaded before each step (rates), and the kernels of that name (RuleKernels), which read both.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "dist/communicator.h"
#include "model/params.h"
#include "ops/step_state.h"
#include "tensor/device.h"

namespace thimble {

// How far an update moved the weights of each group: |change| / |weights|. About 1e-3 is healthy; far more is a rate
// too high, far less a rate too low.
struct UpdateSize {
  double change_squares = 0, weight_squares = 0;

  double ratio() const;
};

class UpdateSizes {
 public:
  // `before` is overwritten.
  void add(ParamGroup group, std::span<float> before, std::span<const float> after);
  const UpdateSize& of(ParamGroup group) const { return sizes_[static_cast<std::size_t>(group)]; }

 private:
  std::array<UpdateSize, kParamGroups> sizes_{};
};

// A parameter that a rule trains, and where its states lie in their blocks.
struct RuleParam {
  const Param* param;
  std::array<std::int64_t, kMostStates> states = {};

  std::span<float> weights(const RuleMemory& memory) const { return part(memory.weights, param->offset); }
  std::span<const float> gradients(const RuleMemory& memory) const {
    return {memory.gradients + param->offset, static_cast<std::size_t>(param->count())};
  }
  std::span<float> state(const RuleMemory& memory, std::size_t i) const {
    return part(memory.states[i], states[i]);
  }

 private:
  std::span<float> part(float* block, std::int64_t offset) const {
    return {block + offset, static_cast<std::size_t>(param->count())};
  }
};

struct RuleStep {
  std::int64_t step = 0;  // counted from 0
  double multiplier = 1;  // the schedule's, of the learning rates
  float grad_scale =
      1;  // what clipping multiplies gradients by; on a device its kernels read it from StepState
};

// What a rank updates on its device. The items are uploaded; the plan stays here and must outlive the calls.
struct DeviceShare {
  std::vector<std::byte> items;
  std::shared_ptr<const void> plan;
};

// A parameter whose update one rank makes for all; its new weights and states are gathered afterwards.
struct OwnedParam {
  int rank;
  const RuleParam* param;
};

// A rule at work on its parameters.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // One update in host memory. `sizes` may be null; asking for them changes no bit. `ranks` is null unless several ranks
  // make this call, each with the same memory.
  virtual void update(const Context& context, const RuleStep& step, const RuleMemory& memory,
                      UpdateSizes* sizes, Communicator* ranks) = 0;

  // For rules with kernels on a device.
  virtual DeviceShare device_share(int rank, int ranks) const;
  virtual void stage(const RuleStep& step,
                     std::byte* settings) const;  // RuleDefinition::settings_bytes of them
  // In the order in which they are gathered. Empty: every rank updates all parameters.
  virtual std::vector<OwnedParam> owned(int ranks) const;
};

// Constant-initialised: no registration, no order of initialisation.
struct RuleDefinition {
  std::string_view name;   // "muon": its kernels on a device go by it
  std::string_view title;  // "Muon": for people
  // Values kept for every element of a parameter, as checkpoints name them: optim.STATE.PARAM. Rules may share a name.
  std::array<std::string_view, kMostStates> states = {};
  std::span<const std::string_view> keys = {};  // of the config, that this rule alone reads
  bool (*trains)(const Param&, const OptimizerConfig&) = nullptr;
  std::unique_ptr<UpdateRule> (*make)(std::vector<RuleParam>, const OptimizerConfig&) = nullptr;
  // Of update(), beyond the states; nullptr: next to nothing.
  std::int64_t (*workspace_bytes)(std::span<const Param* const>, const OptimizerConfig&) = nullptr;
  // What a run's first lines say of it; nullptr: nothing.
  std::string (*summary)(const OptimizerConfig&) = nullptr;
  std::size_t settings_bytes = 0;  // on a device

  std::size_t state_count() const;
};

using RuleList = std::span<const RuleDefinition* const>;
RuleList update_rules();

// The first of the list that trains it. One that no rule trains is an Error.
const RuleDefinition& rule_of(const Param& param, const OptimizerConfig& config,
                              RuleList rules = update_rules());

// The parameters of each rule that has any, in the order of the list.
struct RuleParams {
  const RuleDefinition* rule;
  std::vector<const Param*> params;
};
std::vector<RuleParams> params_by_rule(const ParamTable& params, const OptimizerConfig& config,
                                       RuleList rules = update_rules());

// Bytes in host memory, without making anything.
struct OptimizerCost {
  std::int64_t state_bytes = 0, workspace_bytes = 0;
};
OptimizerCost optimizer_cost(const ParamTable& params, const OptimizerConfig& config,
                             RuleList rules = update_rules());

}  // namespace thimble
