#include "optim/update_rule.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/sums.h"
#include "optim/adam.h"
#include "optim/muon.h"

namespace thimble {

namespace {

constexpr const RuleDefinition* kRules[] = {&rule::kMuon, &rule::kAdam};

}  // namespace

RuleList update_rules() {
  return kRules;
}

std::size_t RuleDefinition::state_count() const {
  return static_cast<std::size_t>(std::ranges::find(states, std::string_view{}) - states.begin());
}

const RuleDefinition& rule_of(const Param& param, const OptimizerConfig& config, RuleList rules) {
  const auto found =
      std::ranges::find_if(rules, [&](const RuleDefinition* rule) { return rule->trains(param, config); });
  check(found != rules.end(), "[optimizer] no update rule trains '{}'", param.name);
  return **found;
}

std::vector<RuleParams> params_by_rule(const ParamTable& params, const OptimizerConfig& config,
                                       RuleList rules) {
  std::vector<RuleParams> groups;
  for (const RuleDefinition* rule : rules) groups.push_back({rule, {}});
  for (const Param& param : params.all())
    std::ranges::find(groups, &rule_of(param, config, rules), &RuleParams::rule)->params.push_back(&param);
  std::erase_if(groups, [](const RuleParams& group) { return group.params.empty(); });
  return groups;
}

OptimizerCost optimizer_cost(const ParamTable& params, const OptimizerConfig& config, RuleList rules) {
  OptimizerCost cost;
  for (const auto& [rule, own] : params_by_rule(params, config, rules)) {
    for (const Param* param : own)
      cost.state_bytes += static_cast<std::int64_t>(rule->state_count() * sizeof(float)) * param->count();
    if (rule->workspace_bytes) cost.workspace_bytes += rule->workspace_bytes(own, config);
  }
  return cost;
}

DeviceShare UpdateRule::device_share(int, int) const {
  return {};
}

void UpdateRule::stage(const RuleStep&, std::byte*) const {}

std::vector<OwnedParam> UpdateRule::owned(int) const {
  return {};
}

double UpdateSize::ratio() const {
  return weight_squares > 0 ? std::sqrt(change_squares / weight_squares) : 0;
}

void UpdateSizes::add(ParamGroup group, std::span<float> before, std::span<const float> after) {
  UpdateSize& size = sizes_[static_cast<std::size_t>(group)];
  size.weight_squares += cpu::sum_of_squares(before);
  for (std::size_t i = 0; i < after.size(); ++i) before[i] -= after[i];
  size.change_squares += cpu::sum_of_squares(before);
}

}  // namespace thimble
