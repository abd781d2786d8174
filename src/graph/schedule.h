// The schedule: the order of steps, the buffer and lifetime of each value, and whether each
// gradient is written with '=' or '+='.
//
// Training runs every node forward, then backward in reverse order. Loss nodes run only in
// backward, which also computes the loss. With `recompute`, values that only their own segment uses
// are dropped after its forward and computed again just before its backward, by the same kernels
// and therefore with the same bits (activation checkpointing).
#pragma once

#include <cstdint>
#include <vector>

#include "graph/tape.h"

namespace thimble {

enum class Phase : std::uint8_t { forward, recompute, backward };

// The location of a tensor for a kernel.
struct Place {
  enum class Kind : std::uint8_t {
    absent,          // an optional input that is not given, or a gradient that is not needed
    shape_only,      // not read in this phase: the kernel gets its shape and no data
    bound,           // bound from outside
    bound_gradient,  // the gradient of a parameter
    buffer           // columns [column, column + cols) of a planned buffer
  };
  Kind kind = Kind::absent;
  int value = -1;
  int buffer = -1;
};

struct Step {
  int node = -1;
  Phase phase = Phase::forward;
  std::vector<Place> in, out, d_out, d_in;
  std::uint32_t add = 0;
};

// A range of memory, live from the step that first writes it to the step that last reads it.
struct Buffer {
  enum class Kind : std::uint8_t { prepared, activation, gradient };
  Kind kind = Kind::activation;
  int value = -1;  // the root value, never a view
  Shape shape;
  int first = 0, last = 0;
};

struct Schedule {
  std::vector<Step> prepare;  // once per optimizer step
  std::vector<Step> steps;
  std::vector<Buffer> buffers;
  std::vector<int> kept;  // buffer of each value in ScheduleOptions::keep
};

struct ScheduleOptions {
  bool training = false;
  bool recompute = false;
  std::vector<Value> keep;  // readable after the run
};

Schedule make_schedule(const Tape& tape, const ScheduleOptions& options);

}  // namespace thimble
