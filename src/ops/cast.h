// Compute copies of parameters: cast, fake_quant.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/op.h"
#include "graph/tape.h"

namespace thimble {

// cast: y = x in another dtype, rounded to nearest, ties to even
//
//   x  [N, C] f32, bf16 or f16   y  [N, C] in `to`: f32, bf16 or f16
//
// backward: dx <- dy   (straight through)
//
// In a model it runs in `prepare`, once per optimizer step: f32 master weights become bf16 or f16
// compute copies. For x in f64 or c128 (used to check the reference), y has the values of `to` but
// keeps x's dtype.

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

// fake_quant: y = the value w would have after packing (ops/quantize.h)
//
//   w  [O, I] f32, one scale per row   y  [O, I] in `to`: f32, bf16 or f16, rounded as cast does
//
// backward: dw <- dy   (straight through)
//
// In a model it runs in `prepare`, once per optimizer step, on the master weights. For w in f64 or
// c128, y keeps w's dtype, as in cast.

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
// Records the copy of a parameter that ops compute with, fake-quantized if bits > 0, in the tape's
// dtype. It runs in `prepare`. Returns the parameter itself if no conversion is needed.
Value compute_copy(Tape& tape, Value parameter, int bits);

}  // namespace op

}  // namespace thimble
