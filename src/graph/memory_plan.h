// The memory plan: an offset for every buffer, such that buffers that are live at the same time do
// not overlap.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/schedule.h"

namespace thimble {

struct MemoryPlan {
  std::vector<std::int64_t> offsets;  // bytes, one for each buffer of the schedule
  std::int64_t arena_bytes = 0;       // total size, including scratch
  std::int64_t scratch_offset = 0, scratch_bytes = 0;

  // Sizes by kind without reuse, and the parameters, which are outside of the arena.
  std::int64_t prepared_bytes = 0, activation_bytes = 0, gradient_bytes = 0;
  std::int64_t parameter_bytes = 0;
};

MemoryPlan plan_memory(const Tape& tape, const Schedule& schedule, const Backend& backend);

// A table in MiB: parameters, prepared weights, activations, scratch, and the memory saved by
// reuse. For training it adds the gradients of parameters and activations, and the optimizer.
std::string describe(const MemoryPlan& plan, bool training, std::int64_t optimizer_bytes = 0);

}  // namespace thimble
