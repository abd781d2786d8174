// All states of an optimizer, in the order of checkpoints.
#pragma once

#include <vector>

#include "optim/optimizer.h"

namespace thimble {

template <class Visit>
void for_each_state(Optimizer& optimizer, const ParamTable& params, Visit visit) {
  for (const Param& param : params.all())
    for (const std::string_view name : optimizer.rule_of(param).states)
      if (!name.empty()) visit(param, name, optimizer.state(name, param));
}

inline std::vector<float> states_of(Optimizer& optimizer, const ParamTable& params) {
  std::vector<float> all;
  for_each_state(optimizer, params, [&](const Param&, std::string_view, std::span<const float> values) {
    all.insert(all.end(), values.begin(), values.end());
  });
  return all;
}

}  // namespace thimble
