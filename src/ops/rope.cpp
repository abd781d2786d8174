#include "ops/rope.h"

#include <cmath>

namespace thimble {

void fill_turns(const Tensor& turns, double base, int direction) {
  const std::int64_t pairs = turns.cols / 2;
  for (std::int64_t p = 0; p < turns.rows; ++p)
    for (std::int64_t i = 0; i < pairs; ++i) {
      const double angle =
          static_cast<double>(p) * std::pow(base, -static_cast<double>(i) / static_cast<double>(pairs));
      turns.row<float>(p)[i] = static_cast<float>(std::cos(angle));
      turns.row<float>(p)[i + pairs] = static_cast<float>(direction * std::sin(angle));
    }
}

}  // namespace thimble
