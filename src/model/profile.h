// Where a program's time goes: seconds and work by op and phase.
#pragma once

#include <map>
#include <utility>

#include "model/schedule.h"
#include "ops/work.h"

namespace thimble {

struct OpTime {
  std::int64_t calls = 0;
  double seconds = 0;
  Work work;
};

class Profile {
 public:
  using Key = std::pair<Op, Phase>;

  void add(Op op, Phase phase, double seconds, const Work& work) {
    OpTime& time = times_[{op, phase}];
    ++time.calls;
    time.seconds += seconds;
    time.work += work;
  }
  const std::map<Key, OpTime>& times() const { return times_; }

 private:
  std::map<Key, OpTime> times_;
};

}  // namespace thimble
