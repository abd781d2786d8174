// head loss: the output layer, the softcap and the cross-entropy in one op, so that logits exist only a chunk of rows
// at a time.
//
//   z = x w^T,  l = cap tanh(z / cap)  (cap 0: l = z)
//   nats[n] = log(sum over v of exp(l[n, v])) - l[n, target[n]]
//
//   x [N, C]   w [V, C]   target [N] i32, -1: not scored (nats = 0)   nats [N, 1], unweighted
//   weight [N, 1]: what row n counts in the loss, sum over n of weight[n] nats[n]; the mean over the whole optimizer
//   step is weight = 1 / (its number of targets)
//
// Without gradients w may be stored (stored.h), with scales where it is i8: it is unpacked for the call.
//
// Logits and nats are f32 whatever x is; dz is rounded to x's dtype before it is multiplied.
//
// backward computes nats as well (in training forward is skipped: the logits are made once):
//   dz = weight (softmax(l) - onehot(target)) (1 - (l / cap)^2)        dx <- dz w        dw += dz^T x
#pragma once

#include "ops/op.h"

namespace thimble {

struct HeadLossAttributes {
  float cap = 0;
  std::int32_t chunk_rows = 1024;  // rows whose logits exist at one time
};

struct HeadLoss {
  Tensor x, w, target, weight, scales, nats;
  Tensor dx, dw;
  bool add_dx;
  Tensor scratch;  // logits of one chunk
  HeadLossAttributes at;

  explicit HeadLoss(const OpCall& c)
      : x(c.input(0)),
        w(c.input(1)),
        target(c.input(2)),
        weight(c.input(3)),
        scales(c.input(4)),
        nats(c.output(0)),
        dx(c.d_input(0)),
        dw(c.d_input(1)),
        add_dx(c.adds(0)),
        scratch(c.scratch),
        at(c.attributes.as<HeadLossAttributes>()) {}
};

std::vector<Shape> head_loss_shapes(std::span<const Shape> in, const Attributes&);

}  // namespace thimble
