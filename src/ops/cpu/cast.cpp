// cast and fake_quant: compute copies of parameters.
#include "ops/cast.h"

#include <optional>
#include <vector>

#include "ops/cpu/row_blocks.h"
#include "ops/quantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/cast.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

void cast_rows(const Tensor& from, const Tensor& to, bool add, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const Row x(from, n), y(to, n);
    for_lanes(from.cols, [&](auto at) HWY_ATTR { put(at, at.load(x), y, add); });
  }
}

HWY_INLINE void update_largest_two(V32& largest, V32& second, V32 magnitude) {
  second = hn::Max(second, hn::Min(largest, magnitude));
  largest = hn::Max(largest, magnitude);
}

// Returns false if the row is not finite.
bool largest_two(const float* w, std::int64_t count, float& largest, float& second) {
  V32 first = hn::Zero(F32()), next = first, zero_if_finite = first;
  for_lanes(count, [&](auto at) HWY_ATTR {
    const V32 value = at.load(w);
    zero_if_finite = hn::Add(zero_if_finite, hn::Sub(value, value));  // NaN for infinities too
    update_largest_two(first, next, hn::Abs(value));
  });
  float firsts[hn::MaxLanes(F32())], nexts[hn::MaxLanes(F32())];
  hn::StoreU(first, F32(), firsts);
  hn::StoreU(next, F32(), nexts);
  largest = second = 0;
  for (std::size_t i = 0; i < hn::Lanes(F32()); ++i)
    for (const float magnitude : {firsts[i], nexts[i]}) {
      second = std::max(second, std::min(largest, magnitude));
      largest = std::max(largest, magnitude);
    }
  return sum_of_lanes(zero_if_finite) == 0;
}

template <class Y>
HWY_INLINE void round_row(const Rounding& by, const float* w, std::int64_t count, Y* y) {
  const V32 magic = all(12582912.0f);  // rounds half to even, as in quantize.cpp
  for_lanes(count, [&](auto at) HWY_ATTR {
    const V32 clipped = hn::Min(hn::Max(at.load(w), all(-by.clip)), all(by.clip));
    const V32 steps = hn::Sub(hn::Add(hn::Div(clipped, all(by.scale)), magic), magic);
    const V32 q = hn::Min(hn::Max(steps, all(by.lowest)), all(by.highest));
    at.store(hn::Mul(all(by.stored), q), y);
  });
}

void round_any_row(const Rounding& by, const Tensor& w, const Tensor& y, std::int64_t row) {
  if (y.dtype == DType::bf16)
    round_row(by, w.row<float>(row), w.cols, y.row<bf16>(row));
  else
    round_row(by, w.row<float>(row), w.cols, y.row<float>(row));
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(cast_rows);
HWY_EXPORT(largest_two);
HWY_EXPORT(round_any_row);

namespace {

float load_f32(const Tensor& tensor, std::int64_t row, std::int64_t column) {
  if (tensor.dtype == DType::f16) return to_f32(tensor.row<f16>(row)[column]);
  if (tensor.dtype == DType::bf16) return to_f32(tensor.row<bf16>(row)[column]);
  return tensor.row<float>(row)[column];
}

void store(const Tensor& tensor, std::int64_t row, std::int64_t column, float value) {
  if (tensor.dtype == DType::f16)
    tensor.row<f16>(row)[column] = to_f16(value);
  else if (tensor.dtype == DType::bf16)
    tensor.row<bf16>(row)[column] = to_bf16(value);
  else
    tensor.row<float>(row)[column] = value;
}

// Not vectorized: f16 is a storage format here, and no training step casts to it.
void cast_f16_rows(const Tensor& from, const Tensor& to, bool add, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t c = 0; c < from.cols; ++c)
      store(to, n, c, add ? load_f32(to, n, c) + load_f32(from, n, c) : load_f32(from, n, c));
}

// to = from, or to += from, computed in f32 and rounded once.
void cast_into(const Tensor& from, const Tensor& to, bool add) {
  const bool f16_storage = from.dtype == DType::f16 || to.dtype == DType::f16;
  parallel_for(from.rows, rows_per_task(from.cols), [&](std::int64_t begin, std::int64_t end) {
    if (f16_storage)
      cast_f16_rows(from, to, add, begin, end);
    else
      HWY_DYNAMIC_DISPATCH(cast_rows)(from, to, add, begin, end);
  });
}

void cast_forward(const Context&, const OpCall& call) {
  const Cast op(call);
  cast_into(op.x, op.y, false);
}

void cast_backward(const Context&, const OpCall& call) {
  const Cast op(call);
  cast_into(op.dy, op.dx, op.add_dx);
}

// Any row, with the packer's quantizer.
void quantize_dequantize(const FakeQuant& op, std::int64_t o, std::vector<std::int8_t>& q) {
  q.resize(static_cast<std::size_t>(op.w.cols));
  const float scale = quantize_row({op.w.row<float>(o), q.size()}, op.at.bits, q);
  const auto value = [&](std::size_t i) { return scale * static_cast<float>(q[i]); };
  if (op.y.dtype == DType::bf16)
    for (std::size_t i = 0; i < q.size(); ++i) op.y.row<bf16>(o)[i] = to_bf16(value(i));
  else if (op.y.dtype == DType::f16)
    for (std::size_t i = 0; i < q.size(); ++i) op.y.row<f16>(o)[i] = to_f16(value(i));
  else
    for (std::size_t i = 0; i < q.size(); ++i) op.y.row<float>(o)[i] = value(i);
}

// Same bits as the quantizer, whose loops are not vectorized. The quantizer handles the remaining
// cases: rows that are not finite, very long or all zeros, and f16, in which the CPU does not
// train.
void fake_quant_forward(const Context&, const OpCall& call) {
  const FakeQuant op(call);
  const auto width = static_cast<std::size_t>(op.w.cols);
  parallel_for(op.w.rows, rows_per_task(op.w.cols), [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int8_t> q;
    for (std::int64_t o = begin; o < end; ++o) {
      float largest = 0, second = 0;
      std::optional<Rounding> by;
      if (op.y.dtype != DType::f16 &&
          HWY_DYNAMIC_DISPATCH(largest_two)(op.w.row<float>(o), op.w.cols, largest, second))
        by = rounding_by_largest(op.at.bits, width, largest, second);
      if (by && by->scale > 0)
        HWY_DYNAMIC_DISPATCH(round_any_row)(*by, op.w, op.y, o);
      else
        quantize_dequantize(op, o, q);
    }
  });
}

void fake_quant_backward(const Context&, const OpCall& call) {
  const FakeQuant op(call);
  cast_into(op.dy, op.dw, op.add_dw);
}

}  // namespace

constinit const Kernels kCast = {.forward = cast_forward,
                                 .backward = cast_backward,
                                 .rows = dtypes({DType::f32, DType::bf16, DType::f16}),
                                 .wide_gradients = true};
constinit const Kernels kFakeQuant = {.forward = fake_quant_forward,
                                      .backward = fake_quant_backward,
                                      .rows = dtypes({DType::f32}),
                                      .wide_gradients = true};

}  // namespace thimble::cpu
#endif
