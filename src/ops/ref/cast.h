#pragma once

#include "base/error.h"
#include "ops/cast.h"
#include "ops/ref/scalar.h"

namespace thimble::ref {

inline float rounded_to(DType dtype, float value) {
  if (dtype == DType::bf16) return to_f32(to_bf16(value));
  if (dtype == DType::f16) return to_f32(to_f16(value));
  return value;
}

// body(T{}) for the type that a dtype stores.
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
      fail("[reference] stores no {}", dtype_name(dtype));
  }
}

// What a number of one storage type is in another.
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

inline void cast_forward(const Context&, const OpCall& call) {
  const Cast op(call);
  const bool check_only = op.y.dtype != op.to;  // f64 and c128: the values of `to` in x's dtype
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

inline void cast_backward(const Context&, const OpCall& call) {
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

}  // namespace thimble::ref
