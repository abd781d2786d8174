#include "ops/elementwise.h"

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

// (1 + tanh(u)) / 2 = sigmoid(2u), u the tanh form's argument.
HWY_INLINE Sigmoid gelu_gate(V32 x) {
  const V32 inner = hn::MulAdd(hn::Mul(x, x), all(static_cast<float>(kGeluCubic)), all(1));
  return sigmoid_and_rest(hn::Mul(hn::Mul(all(static_cast<float>(2 * kGeluInner)), x), inner));
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
  static HWY_INLINE V32 value(V32 x) { return hn::Mul(x, gelu_gate(x).value); }
  static HWY_INLINE V32 slope(V32 x) {
    const Sigmoid s = gelu_gate(x);
    const V32 inner = hn::MulAdd(all(static_cast<float>(6 * kGeluInner * kGeluCubic)), hn::Mul(x, x),
                                 all(static_cast<float>(2 * kGeluInner)));
    return hn::MulAdd(hn::Mul(x, inner), hn::Mul(s.value, s.rest), s.value);
  }
};

template <class Kind>
HWY_INLINE void activate(const Activation& op, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n), Row(op.y, n)}, [&](auto x, auto y) HWY_ATTR {
      for_lanes(op.y.cols, [&](auto at) HWY_ATTR { at.store(Kind::value(at.load(x)), y); });
    });
}

template <class Kind>
HWY_INLINE void activate_backward(const Activation& op, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n), Row(op.dy, n), Row(op.dx, n)}, [&](auto x, auto dy, auto dx) HWY_ATTR {
      for_lanes(op.dy.cols, [&](auto at) HWY_ATTR {
        put(at, hn::Mul(at.load(dy), Kind::slope(at.load(x))), dx, op.add_dx);
      });
    });
}

HWY_INLINE void swiglu(const Activation& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t F = op.y.cols;
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n), Row(op.y, n)}, [&](auto gates, auto y) HWY_ATTR {
      const auto ups = gates + F;
      for_lanes(F, [&](auto at) HWY_ATTR {
        const V32 gate = at.load(gates);
        at.store(hn::Mul(hn::Mul(gate, sigmoid_lanes(gate)), at.load(ups)), y);
      });
    });
}

HWY_INLINE void swiglu_backward(const Activation& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t F = op.dy.cols;
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n), Row(op.dy, n), Row(op.dx, n)}, [&](auto gates, auto dy, auto dgates) HWY_ATTR {
      const auto ups = gates + F;
      const auto dups = dgates + F;
      for_lanes(F, [&](auto at) HWY_ATTR {
        const V32 gate = at.load(gates), gradient = at.load(dy);
        const Sigmoid s = sigmoid_and_rest(gate);
        const V32 slope = hn::Mul(s.value, hn::MulAdd(gate, s.rest, all(1)));
        put(at, hn::Mul(hn::Mul(gradient, at.load(ups)), slope), dgates, op.add_dx);
        put(at, hn::Mul(gradient, hn::Mul(gate, s.value)), dups, op.add_dx);
      });
    });
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
