// Building blocks of op definitions: shape checks, and a reference backend made from a formula.
//
// A formula is a struct with `View`, the struct of the op's header, and plain loops over any number
// type:
//
//   struct RmsNormFormula {
//     using View = RmsNorm;
//     template <class T> static void forward(const RmsNorm& op);
//     template <class T> static void backward(const RmsNorm& op);
//   };
//   ... .reference = &reference_kernels<RmsNormFormula> ...
#pragma once

#include <cmath>
#include <complex>
#include <span>
#include <string_view>

#include "base/error.h"
#include "graph/op.h"
#include "ops/linear.h"

namespace thimble {

// Shape checks with uniform messages: "[rmsnorm] expected weight of width 512, got 500".
class ShapeCheck {
 public:
  ShapeCheck(std::string_view op, std::span<const Shape> in, std::size_t least, std::size_t most)
      : op_(op), in_(in) {
    check(in.size() >= least && in.size() <= most, "[{}] expected {} to {} inputs, got {}", op, least, most,
          in.size());
  }

  bool has(std::size_t i) const { return i < in_.size() && in_[i].rows > 0; }

  // Activation rows or a matrix, in the dtype of input 0.
  const Shape& rows(std::size_t i, std::string_view name) const {
    const Shape& shape = floats(i, name);
    same_dtype(in_[0].dtype, shape, name);
    return shape;
  }
  const Shape& rows(std::size_t i, std::string_view name, std::int64_t width) const {
    const Shape& shape = rows(i, name);
    check(shape.cols == width, "[{}] expected {} of width {}, got {}", op_, name, width, shape.cols);
    return shape;
  }
  const Shape& rows(std::size_t i, std::string_view name, std::int64_t count, std::int64_t width) const {
    const Shape& shape = rows(i, name, width);
    check(shape.rows == count, "[{}] expected {} of {} rows, got {}", op_, name, count, shape.rows);
    return shape;
  }

  // A matrix in the dtype of the rows, or stored in fewer bits; i8 matrices need scales.
  const Shape& matrix(std::size_t i, std::string_view name, DType rows, std::size_t scales) const {
    const Shape& shape = present(i, name);
    const bool stored = shape.dtype == DType::bf16 || shape.dtype == DType::f16 || shape.dtype == DType::i8 ||
                        shape.dtype == DType::blocks;
    check(shape.dtype == rows || stored,
          "[{}] expected {} in {}, or stored as bf16, f16, i8 or blocks, got {}", op_, name, dtype_name(rows),
          dtype_name(shape.dtype));
    check(shape.cols > 0, "[{}] expected {} to have columns, got none", op_, name);
    const bool integers = shape.dtype == DType::i8;
    check(has(scales) == integers, "[{}] expected {} in {} {} scales", op_, name, dtype_name(shape.dtype),
          integers ? "with" : "without");
    if (!has(scales)) return shape;
    const Shape& s = floats(scales, "scales");
    check(s.dtype == DType::f32, "[{}] expected scales in f32, got {}", op_, dtype_name(s.dtype));
    check(s.rows == shape.rows && (s.cols == 1 || s.cols == scales_per_row(shape.cols)),
          "[{}] expected scales [{}, 1] or [{}, {}], got {}", op_, shape.rows, shape.rows,
          scales_per_row(shape.cols), s.text());
    return shape;
  }

  // A matrix of any float dtype.
  const Shape& floats(std::size_t i, std::string_view name) const {
    const Shape& shape = present(i, name);
    check(is_float(shape.dtype), "[{}] expected {} to contain floats, got {}", op_, name,
          dtype_name(shape.dtype));
    check(shape.cols > 0, "[{}] expected {} to have columns, got none", op_, name);
    return shape;
  }

  // Full precision: f32 when the rows have 16 bits.
  const Shape& full(std::size_t i, std::string_view name) const {
    const Shape& shape = floats(i, name);
    same_dtype(statistic_dtype(in_[0].dtype), shape, name);
    return shape;
  }
  const Shape& full(std::size_t i, std::string_view name, std::int64_t count, std::int64_t width) const {
    const Shape& shape = full(i, name);
    check(shape.cols == width, "[{}] expected {} of width {}, got {}", op_, name, width, shape.cols);
    check(shape.rows == count, "[{}] expected {} of {} rows, got {}", op_, name, count, shape.rows);
    return shape;
  }

  // [1, width] in full precision; optional_vector also accepts an absent input.
  void vector(std::size_t i, std::string_view name, std::int64_t width) const { full(i, name, 1, width); }
  void optional_vector(std::size_t i, std::string_view name, std::int64_t width) const {
    if (has(i)) vector(i, name, width);
  }

  // [N, 1] i32.
  const Shape& integers(std::size_t i, std::string_view name) const {
    const Shape& shape = present(i, name);
    check(shape.dtype == DType::i32, "[{}] expected {} in i32, got {}", op_, name, dtype_name(shape.dtype));
    check(shape.cols == 1, "[{}] expected {} of width 1, got {}", op_, name, shape.cols);
    return shape;
  }
  const Shape& integers(std::size_t i, std::string_view name, std::int64_t count) const {
    const Shape& shape = integers(i, name);
    check(shape.rows == count, "[{}] expected {} of {} rows, got {}", op_, name, count, shape.rows);
    return shape;
  }

 private:
  void same_dtype(DType expected, const Shape& shape, std::string_view name) const {
    check(shape.dtype == expected, "[{}] expected {} in {}, got {}", op_, name, dtype_name(expected),
          dtype_name(shape.dtype));
  }
  const Shape& present(std::size_t i, std::string_view name) const {
    check(has(i), "[{}] {} is missing", op_, name);
    return in_[i];
  }

  std::string_view op_;
  std::span<const Shape> in_;
};

// The shape of per-row statistics such as 1/rms or logsumexp, in full precision.
inline Shape statistic(const Shape& x, std::int64_t cols = 1) {
  return {x.rows, cols, statistic_dtype(x.dtype)};
}

// Floating-point operations of x w^T.
inline double product_flops(const Tensor& x, const Tensor& weight) {
  return 2.0 * static_cast<double>(x.rows) * static_cast<double>(weight.count());
}

// Operations that formulas need for T = float, double and std::complex<double>.
//
// The complex-step derivative (f(x + ih) has imaginary part h f'(x), with no cancellation) needs
// analytic formulas. Comparisons use the real part, which is correct except at a kink, such as
// relu's at 0.
inline float real_part(float x) {
  return x;
}
inline double real_part(double x) {
  return x;
}
inline double real_part(std::complex<double> x) {
  return x.real();
}

// Assigns, or adds if the planner requires it.
template <class T>
void store(T& target, T value, bool add) {
  target = add ? target + value : value;
}

template <class T>
T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

// scale[i]. A scale may be absent (1), one shared value, or one value per i.
template <class T>
T scale_at(const T* scale, long cols, long i) {
  return scale ? scale[cols == 1 ? 0 : i] : T(1);
}

inline constexpr DTypes kReferenceNumbers = dtypes({DType::f32, DType::f64, DType::c128});

// Calls body(T{}) with the number type of the call.
template <class Body>
void by_number(const OpCall& call, Body body) {
  switch (const DType dtype = call.in[0].dtype) {
    case DType::f32:
      return body(float{});
    case DType::f64:
      return body(double{});
    case DType::c128:
      return body(std::complex<double>{});
    default:
      fail("[reference] works in f32, f64 or c128, got {}", dtype_name(dtype));
  }
}

template <class Formula>
void reference_forward(const Context&, const OpCall& call) {
  by_number(call,
            [&](auto number) { Formula::template forward<decltype(number)>(typename Formula::View(call)); });
}

template <class Formula>
void reference_backward(const Context&, const OpCall& call) {
  by_number(call,
            [&](auto number) { Formula::template backward<decltype(number)>(typename Formula::View(call)); });
}

template <class Formula>
inline constexpr Kernels reference_kernels = {.forward = reference_forward<Formula>,
                                              .backward = reference_backward<Formula>,
                                              .rows = kReferenceNumbers};

// For ops without backward.
template <class Formula>
inline constexpr Kernels inference_kernels = {.forward = reference_forward<Formula>,
                                              .rows = kReferenceNumbers};

}  // namespace thimble
