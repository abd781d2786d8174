// The CPU kernels: Highway for rows, oneDNN and kernels of our own for matrices.
#pragma once

#include "graph/op.h"
#include "ops/linear.h"

namespace thimble::cpu {

void rope_forward(const Context&, const OpCall&);
void rope_backward(const Context&, const OpCall&);
void attention_forward(const Context&, const OpCall&);
void attention_backward(const Context&, const OpCall&);
void exclusive_attention_forward(const Context&, const OpCall&);
void exclusive_attention_backward(const Context&, const OpCall&);
void cached_attention_forward(const Context&, const OpCall&);

}  // namespace thimble::cpu
