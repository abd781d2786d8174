// Loops over f32 vectors, compiled once per instruction set (Highway re-includes this file).
//
//   for_lanes(count, [&](auto at) { at.store(at.load(x) + at.load(y), z); });
//
// `at` is a whole vector, or the partial vector at the end of a row: lanes past the end load as 0
// and are not stored. A result depends only on its row, never on other rows or on alignment.
//
// x, y and z are pointers to f32 or bf16, or a Row of either; f16 and i8 can also be loaded. Values
// in registers are f32.

// Highway's include guard: toggled, because every target includes the file again.
#if defined(THIMBLE_OPS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THIMBLE_OPS_CPU_SIMD_INL_H_
#undef THIMBLE_OPS_CPU_SIMD_INL_H_
#else
#define THIMBLE_OPS_CPU_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "base/machine.h"
#include "tensor/tensor.h"

#ifndef THIMBLE_OPS_CPU_SIMD_INL_H_ONCE
#define THIMBLE_OPS_CPU_SIMD_INL_H_ONCE
namespace thimble::cpu {

// Whether the processor rounds f32 to bf16 in one instruction (AVX-512 BF16). Inline, because it is
// called for every row.
inline bool rounds_bf16_in_hardware() {
  static const bool rounds = cpu_features().avx512_bf16;
  return rounds;
}

}  // namespace thimble::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F32 = hn::ScalableTag<float>;
using V32 = hn::Vec<F32>;

using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;

HWY_INLINE V32 widen(hn::Vec<U16> bits) {
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), bits)));
}

using Half = hn::Rebind<hwy::float16_t, F32>;
using I8 = hn::Rebind<std::int8_t, F32>;

HWY_INLINE V32 widen(hn::Vec<Half> value) {
  return hn::PromoteTo(F32(), value);
}
HWY_INLINE V32 widen(hn::Vec<I8> value) {
  return hn::ConvertTo(F32(), hn::PromoteTo(hn::RebindToSigned<F32>(), value));
}
HWY_INLINE hn::Vec<Half> load_half(const f16* row) {
  return hn::LoadU(Half(), reinterpret_cast<const hwy::float16_t*>(row));
}

// To nearest, ties to even, NaN stays NaN, as to_bf16 of tensor/tensor.h. (Highway 1.0.3's own
// conversion truncates.)
HWY_INLINE hn::Vec<U16> narrow(V32 value) {
  const auto bits = hn::BitCast(U32(), value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(U32(), 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(U32(), 0x7FFF)));
  const auto quiet = hn::Or(bits, hn::Set(U32(), 0x400000));
  const auto is_nan = hn::RebindMask(U32(), hn::IsNaN(value));
  return hn::TruncateTo(U16(), hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded)));
}

// The same in one instruction, except that it treats numbers below 2^-126 as 0.
HWY_INLINE hn::Vec<U16> narrow_in_hardware(V32 value) {
#if HWY_TARGET == HWY_AVX3
  __m256i bits;  // inline assembly: Highway 1.0.3's AVX-512 target does not include AVX-512 BF16
  asm("vcvtneps2bf16 %1, %0" : "=v"(bits) : "v"(value.raw));
  return hn::Vec<U16>{bits};
#else
  return narrow(value);
#endif
}

// A row of an f32 or bf16 tensor. The dtype is tested for every vector, so a kernel is compiled
// once for all combinations; the branch is constant within a loop and therefore predicted.
class Row {
 public:
  Row() = default;
  Row(const Tensor& tensor, std::int64_t row)
      : kind_(tensor.dtype == DType::f32  ? Kind::f32
              : rounds_bf16_in_hardware() ? Kind::bf16_in_hardware
                                          : Kind::bf16),
        data_(!tensor              ? nullptr
              : kind_ == Kind::f32 ? static_cast<void*>(tensor.row<float>(row))
                                   : tensor.row<bf16>(row)) {}

  explicit operator bool() const { return data_ != nullptr; }
  Row operator+(std::int64_t columns) const {
    Row moved = *this;
    moved.data_ = is_f32() ? static_cast<void*>(floats() + columns) : bf16s() + columns;
    return moved;
  }

  bool is_f32() const { return kind_ == Kind::f32; }
  bool is_bf16_in_hardware() const { return kind_ == Kind::bf16_in_hardware; }
  float* floats() const { return static_cast<float*>(data_); }
  bf16* bf16s() const { return static_cast<bf16*>(data_); }
  HWY_INLINE hn::Vec<U16> rounded(V32 value) const {
    return kind_ == Kind::bf16_in_hardware ? narrow_in_hardware(value) : narrow(value);
  }

 private:
  enum class Kind : std::uint8_t { f32, bf16, bf16_in_hardware };

  Kind kind_ = Kind::f32;
  void* data_ = nullptr;
};

// A row known to be bf16, on a processor that rounds to bf16 in hardware.
class Bf16Row {
 public:
  explicit Bf16Row(Row row) : data_(row.bf16s()) {}

  explicit operator bool() const { return data_ != nullptr; }
  Bf16Row operator+(std::int64_t columns) const { return Bf16Row(data_ + columns); }
  bf16* bf16s() const { return data_; }

 private:
  explicit Bf16Row(bf16* data) : data_(data) {}

  bf16* data_;
};

// Calls body(row, row, ...). A second copy is compiled for the common case: all rows bf16.
//
//   with_rows({Row(op.x, n), Row(op.y, n)}, [&](auto x, auto y) HWY_ATTR { ... });
template <class Body, std::size_t... I>
HWY_INLINE void with_rows(const Row* rows, Body body, std::index_sequence<I...>) {
  if (((!rows[I] || rows[I].is_bf16_in_hardware()) && ...))
    body(Bf16Row(rows[I])...);
  else
    body(rows[I]...);
}
template <std::size_t N, class Body>
HWY_INLINE void with_rows(const Row (&rows)[N], Body body) {
  with_rows(rows, body, std::make_index_sequence<N>());
}

// Loads and stores of Row and Bf16Row, implemented with those of the element types.
template <class At>
struct AnyRow {
  HWY_INLINE V32 load(Row row) const {
    return row.is_f32() ? at().load(row.floats()) : at().load(row.bf16s());
  }
  HWY_INLINE void store(V32 value, Row row) const {
    row.is_f32() ? at().store(value, row.floats()) : at().store_bits(row.rounded(value), row.bf16s());
  }
  HWY_INLINE V32 load(Bf16Row row) const { return at().load(row.bf16s()); }
  HWY_INLINE void store(V32 value, Bf16Row row) const {
    at().store_bits(narrow_in_hardware(value), row.bf16s());
  }

 private:
  HWY_INLINE const At& at() const { return static_cast<const At&>(*this); }
};

struct WholeVector : AnyRow<WholeVector> {
  using AnyRow::load, AnyRow::store;
  explicit WholeVector(std::int64_t first) : i(first) {}

  HWY_INLINE V32 load(const float* row) const { return hn::LoadU(F32(), row + i); }
  HWY_INLINE void store(V32 value, float* row) const { hn::StoreU(value, F32(), row + i); }
  HWY_INLINE V32 load(const bf16* row) const {
    return widen(hn::LoadU(U16(), reinterpret_cast<const std::uint16_t*>(row) + i));
  }
  HWY_INLINE V32 load(const f16* row) const { return widen(load_half(row + i)); }
  HWY_INLINE V32 load(const std::int8_t* row) const { return widen(hn::LoadU(I8(), row + i)); }
  HWY_INLINE void store(V32 value, bf16* row) const { store_bits(narrow(value), row); }
  HWY_INLINE void store_bits(hn::Vec<U16> bits, bf16* row) const {
    hn::StoreU(bits, U16(), reinterpret_cast<std::uint16_t*>(row) + i);
  }
  V32 or_zero(V32 value) const { return value; }
  V32 or_else(V32 value, float) const { return value; }

  std::int64_t i;
};

struct PartOfVector : AnyRow<PartOfVector> {
  using AnyRow::load, AnyRow::store;
  PartOfVector(std::int64_t first, std::int64_t lanes)
      : i(first), count(static_cast<std::size_t>(lanes)), mask(hn::FirstN(F32(), count)) {}

  HWY_INLINE V32 load(const float* row) const { return hn::MaskedLoad(mask, F32(), row + i); }
  HWY_INLINE void store(V32 value, float* row) const { hn::BlendedStore(value, mask, F32(), row + i); }
  // Through the stack: below AVX-512 there are no masked 16-bit loads and stores.
  HWY_INLINE V32 load(const bf16* row) const {
    std::uint16_t bits[hn::MaxLanes(U16())] = {};
    std::memcpy(bits, row + i, count * sizeof(bf16));
    return widen(hn::LoadU(U16(), bits));
  }
  HWY_INLINE V32 load(const f16* row) const {
    f16 part[hn::MaxLanes(Half())] = {};
    std::memcpy(part, row + i, count * sizeof(f16));
    return widen(load_half(part));
  }
  HWY_INLINE V32 load(const std::int8_t* row) const {
    std::int8_t part[hn::MaxLanes(I8())] = {};
    std::memcpy(part, row + i, count);
    return widen(hn::LoadU(I8(), part));
  }
  HWY_INLINE void store(V32 value, bf16* row) const { store_bits(narrow(value), row); }
  HWY_INLINE void store_bits(hn::Vec<U16> bits, bf16* row) const {
    std::uint16_t whole[hn::MaxLanes(U16())];
    hn::StoreU(bits, U16(), whole);
    std::memcpy(row + i, whole, count * sizeof(bf16));
  }
  V32 or_zero(V32 value) const { return hn::IfThenElseZero(mask, value); }
  V32 or_else(V32 value, float other) const { return hn::IfThenElse(mask, value, hn::Set(F32(), other)); }

  std::int64_t i;
  std::size_t count;
  hn::Mask<F32> mask;
};

template <class Body>
HWY_INLINE void for_lanes(std::int64_t count, Body body) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(F32()));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) body(WholeVector{i});
  if (i < count) body(PartOfVector{i, count - i});
}

HWY_INLINE V32 all(float value) {
  return hn::Set(F32(), value);
}

// Stores, or adds if the planner requires it.
template <class At, class Pointer>
HWY_INLINE void put(At at, V32 value, Pointer row, bool add) {
  at.store(add ? hn::Add(at.load(row), value) : value, row);
}

HWY_INLINE float sum_of_lanes(V32 value) {
  return hn::GetLane(hn::SumOfLanes(F32(), value));
}
HWY_INLINE float max_of_lanes(V32 value) {
  return hn::GetLane(hn::MaxOfLanes(F32(), value));
}

// The sum over i of term(at); lanes past the end must be 0.
template <class Term>
HWY_INLINE float sum_lanes(std::int64_t count, Term term) {
  // 4 accumulators hide the latency of the addition.
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(F32()));
  V32 a = hn::Zero(F32()), b = a, c = a, d = a;
  std::int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    a = hn::Add(a, term(WholeVector{i}));
    b = hn::Add(b, term(WholeVector{i + lanes}));
    c = hn::Add(c, term(WholeVector{i + 2 * lanes}));
    d = hn::Add(d, term(WholeVector{i + 3 * lanes}));
  }
  for (; i + lanes <= count; i += lanes) a = hn::Add(a, term(WholeVector{i}));
  if (i < count) b = hn::Add(b, term(PartOfVector{i, count - i}));
  return sum_of_lanes(hn::Add(hn::Add(a, b), hn::Add(c, d)));
}

template <class A, class B>
HWY_INLINE float dot(A a, B b, std::int64_t count) {
  return sum_lanes(count, [&](auto at) HWY_ATTR { return hn::Mul(at.load(a), at.load(b)); });
}

// y += a x
template <class X>
HWY_INLINE void add_multiple(float a, X x, float* y, std::int64_t count) {
  const V32 factor = all(a);
  for_lanes(count, [&](auto at) HWY_ATTR { at.store(hn::MulAdd(factor, at.load(x), at.load(y)), y); });
}

// exp with an error of at most two units in the last place; 0 below -87, where f32 results become
// subnormal. Infinity and NaN propagate. (Highway 1.0.3's Exp is wrong above 88.7, returns 0 for
// NaN, and takes twice as long.)
HWY_INLINE V32 exp_lanes(V32 x) {
  // x = n ln 2 + r: adding 1.5 * 2^23 leaves n in the lowest bits.
  const V32 magic = all(12582912.0f);
  const V32 shifted = hn::MulAdd(x, all(1.44269504f), magic);
  const V32 n = hn::Sub(shifted, magic);
  const V32 r = hn::NegMulAdd(n, all(-2.12194440e-4f), hn::NegMulAdd(n, all(0.693359375f), x));
  // e^r for |r| <= ln(2) / 2, with the coefficients of Cephes' expf.
  V32 p = hn::MulAdd(all(1.9875691500e-4f), r, all(1.3981999507e-3f));
  p = hn::MulAdd(p, r, all(8.3334519073e-3f));
  p = hn::MulAdd(p, r, all(4.1665795894e-2f));
  p = hn::MulAdd(p, r, all(1.6666665459e-1f));
  p = hn::MulAdd(p, r, all(5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), all(1));
  const auto power = hn::ShiftLeft<23>(hn::BitCast(U32(), shifted));
  const V32 inside = hn::BitCast(F32(), hn::Add(hn::BitCast(U32(), p), power));
  const auto is_inside = hn::And(hn::Ge(x, all(-87)), hn::Le(x, all(88.72f)));
  const V32 large = hn::Add(x, all(std::numeric_limits<float>::infinity()));  // or NaN
  return hn::IfThenElse(is_inside, inside, hn::IfThenZeroElse(hn::Lt(x, all(-87)), large));
}

// 1 / x with an error of one or two units in the last place, for x with normal 1 / x. A division
// takes three times as long.
HWY_INLINE V32 reciprocal_lanes(V32 x) {
  const V32 estimate = hn::ApproximateReciprocal(x);
  return hn::Mul(estimate, hn::NegMulAdd(x, estimate, all(2)));
}

// sigmoid(x), and 1 - sigmoid(x) without cancellation.
struct Sigmoid {
  V32 value, rest;
};

HWY_INLINE Sigmoid sigmoid_and_rest(V32 x) {
  // The limit keeps the power finite; the smallest sigmoid is 4e-39.
  const V32 power = exp_lanes(hn::Min(hn::Neg(x), all(88.5f)));
  const V32 value = hn::IfThenElse(hn::Eq(x, x), reciprocal_lanes(hn::Add(all(1), power)), x);
  return {value, hn::Mul(power, value)};
}

HWY_INLINE V32 sigmoid_lanes(V32 x) {
  return sigmoid_and_rest(x).value;
}

// tanh with an error of a few units in the last place: Eigen's rational approximation x P(x^2) /
// Q(x^2); +-1 from 7.9 on.
HWY_INLINE V32 tanh_lanes(V32 x) {
  const V32 limit = all(7.90531110763549805f);
  const V32 inside = hn::Max(hn::Neg(limit), hn::Min(x, limit)), z = hn::Mul(inside, inside);
  V32 p = hn::MulAdd(all(-2.76076847742355e-16f), z, all(2.00018790482477e-13f));
  p = hn::MulAdd(p, z, all(-8.60467152213735e-11f));
  p = hn::MulAdd(p, z, all(5.12229709037114e-08f));
  p = hn::MulAdd(p, z, all(1.48572235717979e-05f));
  p = hn::MulAdd(p, z, all(6.37261928875436e-04f));
  p = hn::MulAdd(p, z, all(4.89352455891786e-03f));
  V32 q = hn::MulAdd(all(1.19825839466702e-06f), z, all(1.18534705686654e-04f));
  q = hn::MulAdd(q, z, all(2.26843463243900e-03f));
  q = hn::MulAdd(q, z, all(4.89352518554385e-03f));
  return hn::IfThenElse(hn::Eq(x, x), hn::Mul(hn::Mul(inside, p), reciprocal_lanes(q)), x);
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#endif
