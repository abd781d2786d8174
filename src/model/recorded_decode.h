// A step of decoding on a card: a program for a bucket of rows, fed and read through pinned memory.
//
// Every step is computed for as many rows as the program was recorded with; rows that fill it up belong to no slot
// (rows.h). So all steps of a bucket have the same shapes and addresses, and tokens, slots and positions lie in memory.
// The first step runs call by call, which plans its products; the second one is recorded, its copies in and out
// included; each later one is a single launch.
#pragma once

#include <memory>

#include "model/bound_program.h"

namespace thimble {

class RecordedDecode {
 public:
  // Both outlive it.
  RecordedDecode(BoundProgram& program, const Context& context) : program_(program), context_(context) {}

  // What is bound has other addresses now: the recording is of no use.
  void forget() { graph_.reset(), steps_ = 0; }

  // Rows filled up. Logits in host memory, valid until the next step; waits for them.
  Tensor step(const Rows& rows);

 private:
  void queue();

  BoundProgram& program_;
  const Context& context_;
  PinnedBuffer logits_;
  std::unique_ptr<DeviceGraph> graph_;
  int steps_ = 0;
};

}  // namespace thimble
