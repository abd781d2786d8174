#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/sums.h"

namespace thimble {

Optimizer::Optimizer(const ParamTable& params, const OptimizerConfig& config, const Context& context,
                     RuleList rules)
    : params_(params), config_(config) {
  for (const Param& param : params.all()) rule_of_.push_back(&thimble::rule_of(param, config, rules));
  lay_out_states(context);
  for (const auto& [definition, own] : params_by_rule(params, config, rules)) {
    std::vector<RuleParam> places;
    for (const Param* param : own) {
      RuleParam place{.param = param};
      for (std::size_t i = 0; i < definition->state_count(); ++i)
        place.states[i] = find_block(definition->states[i])->offsets[index_of(*param)];
      places.push_back(place);
    }
    active_.push_back({definition, definition->make(std::move(places), config)});
  }
}

void Optimizer::lay_out_states(const Context& context) {
  for (const Param& param : params_.all())
    for (std::size_t i = 0; i < rule_of(param).state_count(); ++i) {
      StateBlock& state = block(rule_of(param).states[i]);
      state.offsets[index_of(param)] = state.size;
      state.size += align_up(param.count(), 16);
    }
  for (StateBlock& state : states_)
    state.values = std::make_unique<FloatArena>(context.runtime(), state.size, "the optimizer",
                                                "lower dim, layers or vocab_size");
}

std::size_t Optimizer::index_of(const Param& param) const {
  const auto index = static_cast<std::size_t>(&param - params_.all().data());
  check(index < params_.all().size(), "[optimizer] '{}' is not a parameter of this table", param.name);
  return index;
}

Optimizer::StateBlock& Optimizer::block(std::string_view name) {
  const auto found = std::ranges::find(states_, name, &StateBlock::name);
  if (found != states_.end()) return *found;
  states_.push_back({.name = name, .offsets = std::vector<std::int64_t>(params_.all().size(), -1)});
  return states_.back();
}

const Optimizer::StateBlock* Optimizer::find_block(std::string_view name) const {
  const auto found = std::ranges::find(states_, name, &StateBlock::name);
  return found == states_.end() ? nullptr : &*found;
}

std::span<float> Optimizer::state(std::string_view name, const Param& param) {
  const StateBlock* found = find_block(name);
  const std::int64_t offset = found ? found->offsets[index_of(param)] : -1;
  if (offset < 0) return {};
  return found->values->all().subspan(static_cast<std::size_t>(offset),
                                      static_cast<std::size_t>(param.count()));
}

void Optimizer::fetch_states() {
  for (StateBlock& state : states_) state.values->fetch();
}

void Optimizer::send_states() {
  for (StateBlock& state : states_) state.values->send();
}

RuleMemory Optimizer::memory(const RuleDefinition& rule, float* weights, const float* gradients,
                             Device device) const {
  RuleMemory memory{.weights = weights, .gradients = gradients};
  for (std::size_t i = 0; i < rule.state_count(); ++i) {
    FloatArena& values = *find_block(rule.states[i])->values;
    memory.states[i] = device == Device::cpu ? values.all().data() : values.on_device();
  }
  return memory;
}

double Optimizer::update(const Context& context, std::int64_t step, double multiplier,
                         std::span<float> weights, std::span<float> gradients, UpdateSizes* sizes) {
  const double norm = std::sqrt(cpu::sum_of_squares(gradients));
  if (!std::isfinite(norm)) return norm;
  const double clipped = config_.clip > 0 ? std::min(1.0, config_.clip / (norm + kClipEps)) : 1.0;
  const RuleStep now{.step = step, .multiplier = multiplier, .grad_scale = static_cast<float>(clipped)};
  for (const ActiveRule& active : active_)
    active.rule->update(context, now,
                        memory(*active.definition, weights.data(), gradients.data(), Device::cpu), sizes,
                        ranks_);
  return norm;
}

}  // namespace thimble
