// Ops of the model's output: head_loss, and softcap for logits that are returned to the caller.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/op.h"
#include "graph/tape.h"

namespace thimble {

// head loss: output layer, softcap and cross-entropy in one op, so that logits exist for only one
// chunk of rows at a time
//
//   x       [N, C]                               weight  [N, 1]  weight of row n in the loss
//   w       [V, C]                               nats    [N, 1]  unweighted
//   target  [N] i32, -1: not scored (nats = 0)
//
//   z = x w^T,  l = cap tanh(z / cap)            (cap 0: l = z)
//   nats[n] = log(sum over v of exp(l[n, v])) - l[n, target[n]]
//
// backward: dz = weight (softmax(l) - onehot(target)) (1 - (l / cap)^2)
//           dx <- dz w        dw += dz^T x
//
// The loss is the sum over n of weight[n] nats[n]. The mean over an optimizer step has weight = 1 /
// (number of targets in the step). Backward computes nats too, and training skips forward, so
// logits are computed once.
//
// Logits and nats are f32 for every dtype of x; dz is rounded to x's dtype before it is multiplied.
// Without a gradient of its own, w may be a stored matrix (ops/linear.h), with scales if it is i8;
// it is unpacked in panels.

struct HeadLossAttributes {
  float cap = 0;
  std::int32_t chunk_rows = 1024;  // whose logits exist at the same time
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

// softcap: y = cap tanh(x / cap), which bounds logits
//
//   x, y  [N, V]
//
// backward: dx <- dy (1 - (y / cap)^2)

struct SoftcapAttributes {
  float cap = 30;
};

struct Softcap {
  Tensor x, y;
  Tensor dy, dx;
  bool add_dx;
  float cap;

  explicit Softcap(const OpCall& c)
      : x(c.input(0)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dx(c.d_input(0)),
        add_dx(c.adds(0)),
        cap(c.attributes.as<SoftcapAttributes>().cap) {}
};

namespace cpu {
extern const Kernels kHeadLoss, kSoftcap;
}  // namespace cpu

namespace op {

extern const OpDefinition kHeadLoss, kSoftcap;

Value head_loss(Tape& tape, Value x, Value weight, Value target, Value row_weight, float cap,
                int chunk_rows = 1024, Value scales = {});
Value softcap(Tape& tape, Value x, float cap);

}  // namespace op

}  // namespace thimble
