// Compute copies of parameters: cast, fake_quant.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/op.h"
#include "graph/tape.h"

namespace thimble {

// cast: y = x in another dtype, rounded to nearest, ties to even (tensor/tensor.h); straight through: dx <- dy.
//
//   x [N, C] f32, bf16 or f16   y [N, C] in `to`, one of these
//
// In a model it runs in `prepare`, once per optimizer step: f32 master weights become bf16 compute copies.
// Of f64 and c128, in which the reference is checked, y has the values of `to` and keeps x's dtype.

struct CastAttributes {
  DType to = DType::bf16;
};

struct Cast {
  Tensor x, y;
  Tensor dy, dx;
  bool add_dx;
  DType to;

  explicit Cast(const OpCall& c)
      : x(c.input(0)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dx(c.d_input(0)),
        add_dx(c.adds(0)),
        to(c.attributes.as<CastAttributes>().to) {}
};

// fake quantisation: y = the value w would have after packing (see quantise.h); straight through: dw <- dy.
//
//   w [O, I] f32, one scale a row   y [O, I] in `to`: f32, bf16 or f16 (rounded as cast does), for the GEMM
//
// In a model it runs in `prepare`, once per optimizer step, on the master weights. Of f64 and c128 y keeps w's
// dtype, as in cast.

struct FakeQuantAttributes {
  std::int32_t bits = 8;
  DType to = DType::f32;
};

struct FakeQuant {
  Tensor w, y;
  Tensor dy, dw;
  bool add_dw;
  FakeQuantAttributes at;

  explicit FakeQuant(const OpCall& c)
      : w(c.input(0)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dw(c.d_input(0)),
        add_dw(c.adds(0)),
        at(c.attributes.as<FakeQuantAttributes>()) {}
};

namespace cpu {
extern const Kernels kCast, kFakeQuant;
}  // namespace cpu

namespace op {

extern const OpDefinition kCast, kFakeQuant;

Value cast(Tape& tape, Value x, DType to);
// The copy of a parameter that ops compute with: fake-quantised (bits > 0), in the tape's dtype. Runs in prepare. The
// parameter itself, where there is nothing to do.
Value compute_copy(Tape& tape, Value parameter, int bits);

}  // namespace op

}  // namespace thimble
