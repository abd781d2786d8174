// Update rules: a RuleDefinition contains everything the program needs to know about how a
// parameter is updated.
//
// optim/update_rule.cpp lists the rules of the product; a parameter belongs to the first one that
// trains it. The optimizer, checkpoints, DeviceStep and the memory estimate use only definitions
// and know no rule by name. docs/design.md shows how to add one.
//
// On a device, a rule consists of items, uploaded once (the parts of parameters that this rank
// updates), settings, uploaded before each step (rates), and the kernels of the same name
// (RuleKernels), which read both.
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

// How far an update moved the weights of a group: |change| / |weights|. About 1e-3 is healthy. Much
// more means that the rate is too high, much less that it is too low.
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

// A parameter that a rule trains, with the offsets of its states in their blocks.
struct RuleParam {
  const Param* param;
  std::array<std::int64_t, kMaxStates> states = {};

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
  double multiplier = 1;  // of the learning rates, from the schedule
  // The clipping factor of gradients. Kernels on a device read it from StepState instead.
  float grad_scale = 1;
};

// What this rank updates on its device. Items are uploaded; the plan stays in host memory and must
// outlive the calls.
struct DeviceShare {
  std::vector<std::byte> items;
  std::shared_ptr<const void> plan;
};

// A parameter that one rank updates for all; its new weights and states are gathered afterwards.
struct OwnedParam {
  int rank;
  const RuleParam* param;
};

// A rule applied to its parameters.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // Makes one update in host memory. `sizes` may be null and does not change the result. `ranks` is
  // null unless several ranks make this call, each with the same memory.
  virtual void update(const Context& context, const RuleStep& step, const RuleMemory& memory,
                      UpdateSizes* sizes, Communicator* ranks) = 0;

  // For rules with kernels on a device.
  virtual DeviceShare device_share(int rank, int ranks) const;
  virtual void stage(const RuleStep& step, std::byte* settings) const;  // writes settings_bytes
  // In the order in which they are gathered. Empty: every rank updates all parameters.
  virtual std::vector<OwnedParam> owned(int ranks) const;
};

// Constant-initialized, so there is no registration and no initialization order.
struct RuleDefinition {
  std::string_view name;   // "muon": also the name of its kernels on a device
  std::string_view title;  // "Muon": for messages
  // Values kept per element of a parameter. Checkpoints name them optim.STATE.PARAM. Rules may use
  // the same name.
  std::array<std::string_view, kMaxStates> states = {};
  std::span<const std::string_view> keys = {};  // config keys that only this rule reads
  bool (*trains)(const Param&, const OptimizerConfig&) = nullptr;
  std::unique_ptr<UpdateRule> (*make)(std::vector<RuleParam>, const OptimizerConfig&) = nullptr;
  // The memory of update() beyond the states; nullptr: negligible.
  std::int64_t (*workspace_bytes)(std::span<const Param* const>, const OptimizerConfig&) = nullptr;
  // The rule's part of the lines printed at the start of a run; nullptr: none.
  std::string (*summary)(const OptimizerConfig&) = nullptr;
  std::size_t settings_bytes = 0;  // on a device

  std::size_t state_count() const;
};

using RuleList = std::span<const RuleDefinition* const>;
RuleList update_rules();

// The first rule of the list that trains the parameter. Throws an Error if there is none.
const RuleDefinition& rule_of(const Param& param, const OptimizerConfig& config,
                              RuleList rules = update_rules());

// The parameters of each rule that has any, in the order of the list.
struct RuleParams {
  const RuleDefinition* rule;
  std::vector<const Param*> params;
};
std::vector<RuleParams> params_by_rule(const ParamTable& params, const OptimizerConfig& config,
                                       RuleList rules = update_rules());

// Bytes in host memory, computed without allocating them.
struct OptimizerCost {
  std::int64_t state_bytes = 0, workspace_bytes = 0;
};
OptimizerCost optimizer_cost(const ParamTable& params, const OptimizerConfig& config,
                             RuleList rules = update_rules());

}  // namespace thimble
