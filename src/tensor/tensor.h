// Tensor: a typed view of a matrix of rows. It owns nothing.
//
// Everything in the engine is rows: activations are [N, C], weights [out, in], a vector is one row, a list of
// N integers is [N, 1]. Heads are a way of reading columns. The row stride lets q, k and v be columns of one
// buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tensor/dtype.h"

namespace thimble {

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
  void* data = nullptr;  // nullptr: an optional input that is absent, a gradient nobody wants
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

  // Views of a part.
  Tensor columns(std::int64_t begin, std::int64_t count) const;
  Tensor row_range(std::int64_t begin, std::int64_t count) const;

  // The first byte that the view can touch, and one past the last.
  const std::byte* begin_bytes() const { return static_cast<const std::byte*>(data); }
  const std::byte* end_bytes() const;
};

template <class T>
Tensor make_tensor(T* data, std::int64_t rows, std::int64_t cols, std::int64_t stride = 0) {
  return {data, rows, cols, stride ? stride : cols, dtype_of<T>(), Device::cpu};
}

// Whether two views share an element. Interleaved columns of one buffer (same stride, disjoint columns) do
// not.
bool overlap(const Tensor& a, const Tensor& b);

void fill_zero(const Tensor& tensor);

}  // namespace thimble
