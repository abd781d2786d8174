#include "ops/cast.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "ops/definition.h"
#include "ops/quantize.h"

namespace thimble {

namespace {

// Converts f32, bf16 and f16 rows; f64 and c128 (the reference's dtypes) are kept.
Shape converted(std::string_view op, Shape shape, DType to) {
  if (shape.dtype == DType::f64 || shape.dtype == DType::c128) return shape;
  check(to == DType::f32 || to == DType::bf16 || to == DType::f16,
        "[{}] expected f32, bf16 or f16 as the result dtype, got {}", op, dtype_name(to));
  shape.dtype = to;
  return shape;
}

std::vector<Shape> cast_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const ShapeCheck c("cast", in, 1, 1);
  return {converted("cast", c.floats(0, "x"), attributes.as<CastAttributes>().to)};
}

std::vector<Shape> fake_quant_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const ShapeCheck c("fake_quant", in, 1, 1);
  const auto at = attributes.as<FakeQuantAttributes>();
  check(at.bits == 8 || at.bits == 6 || at.bits == 5, "[fake_quant] expected 8, 6 or 5 bits, got {}",
        at.bits);
  return {converted("fake_quant", c.full(0, "weight"), at.to)};
}

float rounded_to(DType dtype, float value) {
  if (dtype == DType::bf16) return to_f32(to_bf16(value));
  if (dtype == DType::f16) return to_f32(to_f16(value));
  return value;
}

// Calls body(T{}) with the type that stores `dtype`.
template <class Body>
void by_storage(DType dtype, Body body) {
  switch (dtype) {
    case DType::f32:
      return body(float{});
    case DType::bf16:
      return body(bf16{});
    case DType::f16:
      return body(f16{});
    case DType::f64:
      return body(double{});
    case DType::c128:
      return body(std::complex<double>{});
    default:
      fail("[reference] expected f32, bf16, f16, f64 or c128, got {}", dtype_name(dtype));
  }
}

// Converts a number from one storage type to another.
template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<From, bf16> || std::is_same_v<From, f16>)
    return convert<To>(to_f32(value));
  else if constexpr (std::is_same_v<To, bf16>)
    return to_bf16(static_cast<float>(real_part(value)));
  else if constexpr (std::is_same_v<To, f16>)
    return to_f16(static_cast<float>(real_part(value)));
  else if constexpr (std::is_same_v<To, From>)
    return value;
  else
    return static_cast<To>(real_part(value));
}

void cast_forward(const Context&, const OpCall& call) {
  const Cast op(call);
  const bool check_only = op.y.dtype != op.to;  // f64 and c128: the values of `to`, in x's dtype
  by_storage(op.x.dtype, [&]<class X>(X) {
    by_storage(op.y.dtype, [&]<class Y>(Y) {
      for (std::int64_t n = 0; n < op.x.rows; ++n)
        for (std::int64_t c = 0; c < op.x.cols; ++c) {
          const X x = op.x.row<X>(n)[c];
          op.y.row<Y>(n)[c] = convert<Y>(check_only ? convert<X>(rounded_to(op.to, convert<float>(x))) : x);
        }
    });
  });
}

void cast_backward(const Context&, const OpCall& call) {
  const Cast op(call);
  by_storage(op.dy.dtype, [&]<class Y>(Y) {
    by_storage(op.dx.dtype, [&]<class X>(X) {
      for (std::int64_t n = 0; n < op.dx.rows; ++n)
        for (std::int64_t c = 0; c < op.dx.cols; ++c) {
          X& dx = op.dx.row<X>(n)[c];
          const Y dy = op.dy.row<Y>(n)[c];
          if constexpr (std::is_same_v<X, bf16> || std::is_same_v<X, f16>)
            dx = op.add_dx ? convert<X>(to_f32(dx) + convert<float>(dy)) : convert<X>(dy);
          else
            store(dx, convert<X>(dy), op.add_dx);
        }
    });
  });
}

constexpr Kernels kCastReference = {.forward = cast_forward,
                                    .backward = cast_backward,
                                    .rows = kReferenceNumbers | dtypes({DType::bf16, DType::f16}),
                                    .wide_gradients = true};

struct FakeQuantFormula {
  using View = FakeQuant;

  template <class T>
  static void forward(const FakeQuant& op) {
    std::vector<float> row(static_cast<std::size_t>(op.w.cols));
    std::vector<std::int8_t> q(row.size());
    for (std::int64_t o = 0; o < op.w.rows; ++o) {
      for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(real_part(op.w.row<T>(o)[i]));
      const float scale = quantize_row(row, op.at.bits, q);
      for (std::size_t i = 0; i < row.size(); ++i) {
        const float value = rounded_to(op.at.to, scale * static_cast<float>(q[i]));
        if (op.y.dtype == DType::bf16)
          op.y.row<bf16>(o)[i] = to_bf16(value);
        else if (op.y.dtype == DType::f16)
          op.y.row<f16>(o)[i] = to_f16(value);
        else
          op.y.row<T>(o)[i] = T(value);
      }
    }
  }

  template <class T>
  static void backward(const FakeQuant& op) {
    for (std::int64_t o = 0; o < op.dy.rows; ++o)
      for (std::int64_t i = 0; i < op.dy.cols; ++i) {
        const T dy = op.dy.dtype == DType::bf16  ? T(to_f32(op.dy.row<bf16>(o)[i]))
                     : op.dy.dtype == DType::f16 ? T(to_f32(op.dy.row<f16>(o)[i]))
                                                 : op.dy.row<T>(o)[i];
        store(op.dw.row<T>(o)[i], dy, op.add_dw);
      }
  }
};

constexpr Kernels kFakeQuantReference = {.forward = reference_forward<FakeQuantFormula>,
                                         .backward = reference_backward<FakeQuantFormula>,
                                         .rows = kReferenceNumbers,
                                         .wide_gradients = true};

}  // namespace

constinit const OpDefinition op::kCast = {.name = "cast",
                                          .inputs = {{{"x", is::differentiable}}},
                                          .outputs = {{{.name = "y"}}},
                                          .shapes = cast_shapes,
                                          .reference = &kCastReference,
                                          .cpu = &cpu::kCast,
                                          .straight_through = true};

constinit const OpDefinition op::kFakeQuant = {.name = "fake_quant",
                                               .inputs = {{{"weight", is::differentiable}}},
                                               .outputs = {{{.name = "y"}}},
                                               .shapes = fake_quant_shapes,
                                               .reference = &kFakeQuantReference,
                                               .cpu = &cpu::kFakeQuant,
                                               .straight_through = true};

Value op::cast(Tape& tape, Value x, DType to) {
  return tape.record(op::kCast, {x}, CastAttributes{to})[0];
}

Value op::compute_copy(Tape& tape, Value parameter, int bits) {
  check(tape.info(parameter).kind == ValueKind::parameter,
        "[tape] expected a parameter to copy, '{}' is not one", tape.info(parameter).name);
  if (bits > 0) return tape.record(op::kFakeQuant, {parameter}, FakeQuantAttributes{bits, tape.dtype()})[0];
  return tape.info(parameter).shape.dtype == tape.dtype() ? parameter : cast(tape, parameter, tape.dtype());
}

}  // namespace thimble
