// The schedule: what runs when, which stretch of memory each value lives in and for how long, and which
// gradients are written with '=' and which with '+='.
//
// Training runs every node forward (a loss node waits: its backward computes both), then backward in reverse.
// With `recompute`, what a segment made for its own use is forgotten after its forward and made again, by the
// same kernels and so with the same bits, just before its backward: activation checkpointing is only this
// edit of the list.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/tape.h"

namespace thimble {

enum class Phase : std::uint8_t { forward, recompute, backward };

// Where a kernel finds a tensor.
struct Place {
  enum class Kind : std::uint8_t {
    absent,          // optional and not given, or a gradient nobody wants
    shape_only,      // not read in this phase: a kernel sees its shape and no data
    bound,           // a value from outside
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

// A stretch of memory, live from the step that first writes it to the one that last reads it.
struct Buffer {
  enum class Kind : std::uint8_t { prepared, activation, gradient };
  Kind kind = Kind::activation;
  int value = -1;  // never a view
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
