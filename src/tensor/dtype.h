// The element types of tensors.
#pragma once

#include <complex>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "base/half.h"

namespace thimble {

// f64 and c128 exist for the reference: double-precision checks and the complex-step derivative.
enum class DType : std::uint8_t { f32, bf16, f16, f64, c128, i32, i64, i8, u8 };

std::string_view dtype_name(DType dtype);
std::int64_t dtype_bytes(DType dtype);
constexpr bool is_float(DType dtype) {
  return dtype <= DType::c128;
}

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  if constexpr (std::is_same_v<T, bf16>) return DType::bf16;
  if constexpr (std::is_same_v<T, f16>) return DType::f16;
  if constexpr (std::is_same_v<T, double>) return DType::f64;
  if constexpr (std::is_same_v<T, std::complex<double>>) return DType::c128;
  if constexpr (std::is_same_v<T, std::int32_t>) return DType::i32;
  if constexpr (std::is_same_v<T, std::int64_t>) return DType::i64;
  if constexpr (std::is_same_v<T, std::int8_t>) return DType::i8;
  if constexpr (std::is_same_v<T, std::uint8_t>) return DType::u8;
}

}  // namespace thimble
