// The work of one call, for profiles: what the mathematics asks for, not what a kernel happens to do.
//
// flops: of matrix products, attention's causal half included; 0 for ops that only move memory.
// bytes: every tensor once: inputs and outputs, in backward their gradients (twice where they are added to).
#pragma once

#include "ops/op.h"

namespace thimble {

struct Work {
  double flops = 0, bytes = 0;

  Work& operator+=(const Work& other) {
    flops += other.flops;
    bytes += other.bytes;
    return *this;
  }
};

Work work_of(const OpDef& def, const OpCall& call);

}  // namespace thimble
