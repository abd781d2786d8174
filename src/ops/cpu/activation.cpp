#include "ops/activation.h"

#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/activation.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// 0 where x <= 0, else `value`: written so that a NaN passes through.
HWY_INLINE V32 where_positive(V32 x, V32 value) {
  return hn::IfThenZeroElse(hn::Le(x, hn::Zero(F32())), value);
}

HWY_INLINE V32 gelu_tanh(V32 x) {
  const V32 cubic = hn::Mul(hn::Mul(x, x), hn::Mul(x, all(static_cast<float>(kGeluCubic))));
  return tanh_lanes(hn::Mul(all(static_cast<float>(kGeluInner)), hn::Add(x, cubic)));
}

struct Relu {
  static HWY_INLINE V32 value(V32 x) { return where_positive(x, x); }
  static HWY_INLINE V32 slope(V32 x) { return hn::IfThenElse(hn::Eq(x, x), where_positive(x, all(1)), x); }
};

struct Relu2 {
  static HWY_INLINE V32 value(V32 x) { return where_positive(x, hn::Mul(x, x)); }
  static HWY_INLINE V32 slope(V32 x) { return where_positive(x, hn::Add(x, x)); }
};

struct LeakyRelu2 {
  static HWY_INLINE V32 value(V32 x) {
    const V32 square = hn::Mul(x, x);
    return hn::IfThenElse(hn::Le(x, hn::Zero(F32())), hn::Mul(all(0.25f), square), square);
  }
  static HWY_INLINE V32 slope(V32 x) {
    return hn::IfThenElse(hn::Le(x, hn::Zero(F32())), hn::Mul(all(0.5f), x), hn::Add(x, x));
  }
};

struct Gelu {
  static HWY_INLINE V32 value(V32 x) { return hn::Mul(hn::Mul(all(0.5f), x), hn::Add(all(1), gelu_tanh(x))); }
  static HWY_INLINE V32 slope(V32 x) {
    const V32 t = gelu_tanh(x);
    const V32 inner = hn::Mul(all(static_cast<float>(kGeluInner)),
                              hn::MulAdd(all(static_cast<float>(3 * kGeluCubic)), hn::Mul(x, x), all(1)));
    const V32 bend = hn::Mul(hn::Mul(x, hn::Sub(all(1), hn::Mul(t, t))), inner);
    return hn::Mul(all(0.5f), hn::Add(hn::Add(all(1), t), bend));
  }
};

template <class Kind>
HWY_INLINE void activate(const Activation& op, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const float* x = op.x.row<float>(n);
    for_lanes(op.y.cols, [&](auto at) HWY_ATTR { at.store(Kind::value(at.load(x)), op.y.row<float>(n)); });
  }
}

template <class Kind>
HWY_INLINE void activate_backward(const Activation& op, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const float* x = op.x.row<float>(n);
    const float* dy = op.dy.row<float>(n);
    for_lanes(op.dy.cols, [&](auto at) HWY_ATTR {
      put(at, hn::Mul(at.load(dy), Kind::slope(at.load(x))), op.dx.row<float>(n), op.add_dx);
    });
  }
}

HWY_INLINE void swiglu(const Activation& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t F = op.y.cols;
  for (std::int64_t n = begin; n < end; ++n) {
    const float* x = op.x.row<float>(n);
    for_lanes(F, [&](auto at) HWY_ATTR {
      const V32 gate = at.load(x);
      at.store(hn::Mul(hn::Mul(gate, sigmoid_lanes(gate)), at.load(x + F)), op.y.row<float>(n));
    });
  }
}

HWY_INLINE void swiglu_backward(const Activation& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t F = op.dy.cols;
  for (std::int64_t n = begin; n < end; ++n) {
    const float* x = op.x.row<float>(n);
    const float* dy = op.dy.row<float>(n);
    float* dx = op.dx.row<float>(n);
    for_lanes(F, [&](auto at) HWY_ATTR {
      const V32 gate = at.load(x), s = sigmoid_lanes(gate);
      const V32 slope = hn::Mul(s, hn::MulAdd(gate, hn::Sub(all(1), s), all(1)));
      const V32 of_gate = hn::Mul(hn::Mul(at.load(dy), at.load(x + F)), slope);
      const V32 of_up = hn::Mul(at.load(dy), hn::Mul(gate, s));
      put(at, of_gate, dx, op.add_dx);
      put(at, of_up, dx + F, op.add_dx);
    });
  }
}

void activation_rows(const Activation& op, std::int64_t begin, std::int64_t end) {
  switch (op.kind) {
    case ActivationKind::relu:
      return activate<Relu>(op, begin, end);
    case ActivationKind::relu2:
      return activate<Relu2>(op, begin, end);
    case ActivationKind::leaky_relu2:
      return activate<LeakyRelu2>(op, begin, end);
    case ActivationKind::gelu:
      return activate<Gelu>(op, begin, end);
    case ActivationKind::swiglu:
      return swiglu(op, begin, end);
  }
}

void activation_backward_rows(const Activation& op, std::int64_t begin, std::int64_t end) {
  switch (op.kind) {
    case ActivationKind::relu:
      return activate_backward<Relu>(op, begin, end);
    case ActivationKind::relu2:
      return activate_backward<Relu2>(op, begin, end);
    case ActivationKind::leaky_relu2:
      return activate_backward<LeakyRelu2>(op, begin, end);
    case ActivationKind::gelu:
      return activate_backward<Gelu>(op, begin, end);
    case ActivationKind::swiglu:
      return swiglu_backward(op, begin, end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(activation_rows);
HWY_EXPORT(activation_backward_rows);

void activation_forward(const Context&, const OpCall& call) {
  const Activation op(call);
  parallel_for(op.x.rows, rows_per_task(op.x.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(activation_rows)(op, begin, end);
  });
}

void activation_backward(const Context&, const OpCall& call) {
  const Activation op(call);
  parallel_for(op.x.rows, rows_per_task(op.x.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(activation_backward_rows)(op, begin, end);
  });
}

}  // namespace thimble::cpu
#endif
