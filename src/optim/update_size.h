// How far an update moved the weights of each group: |change| / |weights|. About 1e-3 is healthy; far more is a
// rate too high, far less a rate too low.
#pragma once

#include <array>
#include <cmath>
#include <span>

#include "config/config.h"
#include "ops/sums.h"

namespace thimble {

struct UpdateSize {
  double change_squares = 0, weight_squares = 0;

  double ratio() const { return weight_squares > 0 ? std::sqrt(change_squares / weight_squares) : 0; }
};

class UpdateSizes {
 public:
  // `before` is overwritten.
  void add(ParamGroup group, std::span<float> before, std::span<const float> after) {
    UpdateSize& size = sizes_[static_cast<std::size_t>(group)];
    size.weight_squares += cpu::sum_of_squares(before);
    for (std::size_t i = 0; i < after.size(); ++i) before[i] -= after[i];
    size.change_squares += cpu::sum_of_squares(before);
  }
  const UpdateSize& of(ParamGroup group) const { return sizes_[static_cast<std::size_t>(group)]; }

 private:
  std::array<UpdateSize, kParamGroups> sizes_{};
};

}  // namespace thimble
