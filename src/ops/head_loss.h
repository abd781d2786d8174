// The end of the model: head_loss, and softcap for logits that are kept.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/op.h"
#include "graph/tape.h"

namespace thimble {

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
// Without gradients w may be stored (ops/linear.h), with scales where it is i8: it is unpacked for the call.
//
// Logits and nats are f32 whatever x is; dz is rounded to x's dtype before it is multiplied.
//
// backward computes nats as well (in training forward is skipped: the logits are made once):
//   dz = weight (softmax(l) - onehot(target)) (1 - (l / cap)^2)        dx <- dz w        dw += dz^T x

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

// softcap: y = cap tanh(x / cap): logits that cannot run away.
//
//   x, y [N, V]
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
