#include "tensor/tensor.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "base/error.h"

namespace thimble {

namespace {

struct DTypeFacts {
  std::string_view name;
  std::int64_t bytes;
};

constexpr std::array<DTypeFacts, 10> kFacts = {{{"f32", 4},
                                                {"bf16", 2},
                                                {"f16", 2},
                                                {"f64", 8},
                                                {"c128", 16},
                                                {"i32", 4},
                                                {"i64", 8},
                                                {"i8", 1},
                                                {"u8", 1},
                                                {"blocks", 0}}};

}  // namespace

std::string_view dtype_name(DType dtype) {
  return kFacts[static_cast<std::size_t>(dtype)].name;
}

std::int64_t dtype_bytes(DType dtype) {
  return kFacts[static_cast<std::size_t>(dtype)].bytes;
}

std::string Shape::text() const {
  return fmt::format("{} [{}, {}]", dtype_name(dtype), rows, cols);
}

Tensor Tensor::columns(std::int64_t begin, std::int64_t count) const {
  check(begin >= 0 && count >= 0 && begin + count <= cols,
        "[tensor] columns {} to {} are outside of a tensor with {} columns", begin, begin + count, cols);
  Tensor part = *this;
  part.data = static_cast<std::byte*>(data) + begin * dtype_bytes(dtype);
  part.cols = count;
  return part;
}

Tensor Tensor::row_range(std::int64_t begin, std::int64_t count) const {
  check(begin >= 0 && count >= 0 && begin + count <= rows,
        "[tensor] rows {} to {} are outside of a tensor with {} rows", begin, begin + count, rows);
  Tensor part = *this;
  part.data = static_cast<std::byte*>(data) + begin * stride * dtype_bytes(dtype);
  part.rows = count;
  return part;
}

const std::byte* Tensor::end_bytes() const {
  if (count() == 0) return begin_bytes();
  return begin_bytes() + ((rows - 1) * stride + cols) * dtype_bytes(dtype);
}

bool overlap(const Tensor& a, const Tensor& b) {
  if (!a || !b || a.count() == 0 || b.count() == 0) return false;
  if (a.end_bytes() <= b.begin_bytes() || b.end_bytes() <= a.begin_bytes()) return false;
  const std::int64_t pitch = a.stride * dtype_bytes(a.dtype);
  if (pitch != b.stride * dtype_bytes(b.dtype) || a.rows <= 1 || b.rows <= 1) return true;
  // Equal pitch: compare the byte ranges of the columns, relative to a's first element, modulo the
  // pitch.
  const std::int64_t distance = (b.begin_bytes() - a.begin_bytes()) % pitch;
  const std::int64_t offset = distance < 0 ? distance + pitch : distance;
  return offset < a.cols * dtype_bytes(a.dtype) || offset + b.cols * dtype_bytes(b.dtype) > pitch;
}

void fill_zero(const Tensor& tensor) {
  const auto bytes = static_cast<std::size_t>(tensor.cols * dtype_bytes(tensor.dtype));
  if (tensor.contiguous()) {
    std::memset(tensor.data, 0, bytes * static_cast<std::size_t>(tensor.rows));
    return;
  }
  for (std::int64_t r = 0; r < tensor.rows; ++r)
    std::memset(tensor.row<std::byte>(0) + r * tensor.stride * dtype_bytes(tensor.dtype), 0, bytes);
}

}  // namespace thimble
