// An axis: which values lie where, and which of them get a label.
#pragma once

#include <string>
#include <vector>

namespace thimble {

struct Scale {
  double low = 0, high = 1;  // low < high; both above 0 where it is logarithmic
  bool logarithmic = false;

  double place_of(double value) const;  // 0 at low, 1 at high

  // Round values, few enough: between 2 and `most` of them where the range allows it.
  std::vector<double> ticks(int most) const;
};

// Around all values, with a little air. `from_zero`: zero is on it. Logarithmic only where that is asked for, all
// values are above 0 and the largest is more than three times the smallest. No finite value at all: 0 to 1.
struct ScaleWish {
  bool logarithmic = false, from_zero = false, air = true;
};
Scale scale_around(const std::vector<double>& values, ScaleWish wish);

// "0.25", "1,500" as "1.5k", "2M", "5e-05": `step` is the distance to the next label, which says how many digits matter.
std::string tick_text(double value, double step);
// All at once, with as many digits as tell neighbours apart.
std::vector<std::string> tick_texts(const std::vector<double>& ticks);

}  // namespace thimble
