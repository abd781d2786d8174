// The memory plan: one offset for every buffer, so that buffers alive at the same time never overlap.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/schedule.h"

namespace thimble {

struct MemoryPlan {
  std::vector<std::int64_t> offsets;  // bytes, one for each buffer of the schedule
  std::int64_t arena_bytes = 0;       // all of it, scratch included
  std::int64_t scratch_offset = 0, scratch_bytes = 0;

  // What the arena holds, by kind, as if nothing were reused; and the parameters, which lie outside.
  std::int64_t prepared_bytes = 0, activation_bytes = 0, gradient_bytes = 0;
  std::int64_t parameter_bytes = 0;
};

MemoryPlan plan_memory(const Tape& tape, const Schedule& schedule, const Backend& backend);

// A table in MiB: parameters, prepared weights, activations, scratch, what reuse saves; in training also the
// gradients of both and the optimizer.
std::string describe(const MemoryPlan& plan, bool training, std::int64_t optimizer_bytes = 0);

}  // namespace thimble
