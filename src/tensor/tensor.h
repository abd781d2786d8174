// Storage types (bf16, f16), element types, and Tensor, a view of rows.
//
// bf16 and f16 are for storage. Arithmetic is f32; conversion to storage rounds to nearest, ties to
// even.
//
//   bf16  1 sign  8 exponent  7 mantissa   the upper half of an f32
//   f16   1 sign  5 exponent 10 mantissa   IEEE binary16, with subnormals
//
// NaN stays NaN (quiet, sign kept); values too large become infinity; f16 subnormals are exact.
#pragma once

#include <bit>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace thimble {

struct bf16 {
  std::uint16_t bits = 0;
};

struct f16 {
  std::uint16_t bits = 0;
};

constexpr float to_f32(bf16 value) {
  return std::bit_cast<float>(std::uint32_t{value.bits} << 16);
}

constexpr bf16 to_bf16(float value) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  // Rounding could turn a NaN into infinity or change its sign, so only set the quiet bit.
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x0040u)};
  return {static_cast<std::uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16)};
}

constexpr float to_f32(f16 value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = value.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

constexpr f16 to_f16(float value) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (u >> 16) & 0x8000u;
  const std::uint32_t magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u)
    return {static_cast<std::uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu))};
  if (magnitude >= 0x477FF000u)
    return {static_cast<std::uint16_t>(sign | 0x7C00u)};  // >= 65520 rounds to infinity
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 makes the FPU align the mantissa to steps of 2^-24 and round it, ties
    // to even.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(aligned) - 0x3F000000u))};
  }
  const std::uint32_t rounded = magnitude + 0x0FFFu + ((magnitude >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | ((rounded - ((127u - 15u) << 23)) >> 13))};
}

// Element types. f64 and c128 are used only by the reference, for double-precision checks and
// complex-step derivatives.
// `blocks`: stored rows of another layout; data points to their description (tensor/block_rows.h).
enum class DType : std::uint8_t { f32, bf16, f16, f64, c128, i32, i64, i8, u8, blocks };

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

// Tensor: a typed, non-owning view of a matrix.
//
// All data is organized as rows: activations are [N, C], weights [out, in], a vector is one row, a
// list of N integers is [N, 1]. Attention heads are ranges of columns. The row stride lets q, k and
// v be column ranges of one buffer.

enum class Device : std::uint8_t { cpu, cuda };

struct Shape {
  std::int64_t rows = 0, cols = 0;
  DType dtype = DType::f32;

  std::int64_t count() const { return rows * cols; }
  std::int64_t bytes() const { return count() * dtype_bytes(dtype); }
  std::string text() const;  // "f32 [128, 512]"
  bool operator==(const Shape&) const = default;
};

struct Tensor {
  void* data = nullptr;  // nullptr: an absent optional input, or a gradient that is not needed
  std::int64_t rows = 0, cols = 0;
  std::int64_t stride = 0;  // elements from one row to the next, >= cols
  DType dtype = DType::f32;
  Device device = Device::cpu;

  explicit operator bool() const { return data != nullptr; }
  Shape shape() const { return {rows, cols, dtype}; }
  std::int64_t count() const { return rows * cols; }
  bool contiguous() const { return stride == cols || rows <= 1; }

  template <class T>
  T* row(std::int64_t r) const {
    return static_cast<T*>(data) + r * stride;
  }

  // Views of a range of columns or rows.
  Tensor columns(std::int64_t begin, std::int64_t count) const;
  Tensor row_range(std::int64_t begin, std::int64_t count) const;

  // The first byte of the view, and one past the last.
  const std::byte* begin_bytes() const { return static_cast<const std::byte*>(data); }
  const std::byte* end_bytes() const;
};

template <class T>
Tensor make_tensor(T* data, std::int64_t rows, std::int64_t cols, std::int64_t stride = 0) {
  return {data, rows, cols, stride ? stride : cols, dtype_of<T>(), Device::cpu};
}

// Whether two views share an element. Disjoint columns of one buffer (equal stride) do not.
bool overlap(const Tensor& a, const Tensor& b);

void fill_zero(const Tensor& tensor);

// Sizes are signed so that their differences are signed; indices of std::vector are unsigned.

constexpr std::size_t index_of(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

}  // namespace thimble
