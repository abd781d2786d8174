// Loops over vectors of f32, compiled once per instruction set (Highway includes this file again for each).
//
//   for_lanes(count, [&](auto at) { at.store(at.load(x) + at.load(y), z); });
//
// `at` is a whole vector, and at the end of a row the rest of one: lanes past the end load as 0 and are not
// stored. A result depends on the row alone, never on its neighbours or its alignment.

// Highway's guard: toggled, because every target includes the file anew.
#if defined(THIMBLE_OPS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THIMBLE_OPS_CPU_SIMD_INL_H_
#undef THIMBLE_OPS_CPU_SIMD_INL_H_
#else
#define THIMBLE_OPS_CPU_SIMD_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cstdint>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F32 = hn::ScalableTag<float>;
using V32 = hn::Vec<F32>;

struct WholeVector {
  std::int64_t i;

  V32 load(const float* row) const { return hn::LoadU(F32(), row + i); }
  void store(V32 value, float* row) const { hn::StoreU(value, F32(), row + i); }
  V32 or_zero(V32 value) const { return value; }
  V32 or_else(V32 value, float) const { return value; }
};

struct PartOfVector {
  std::int64_t i;
  hn::Mask<F32> mask;

  V32 load(const float* row) const { return hn::MaskedLoad(mask, F32(), row + i); }
  void store(V32 value, float* row) const { hn::BlendedStore(value, mask, F32(), row + i); }
  V32 or_zero(V32 value) const { return hn::IfThenElseZero(mask, value); }
  V32 or_else(V32 value, float other) const { return hn::IfThenElse(mask, value, hn::Set(F32(), other)); }
};

template <class Body>
HWY_INLINE void for_lanes(std::int64_t count, Body body) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(F32()));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) body(WholeVector{i});
  if (i < count) body(PartOfVector{i, hn::FirstN(F32(), static_cast<std::size_t>(count - i))});
}

HWY_INLINE V32 all(float value) {
  return hn::Set(F32(), value);
}

// Stores or adds: '=' or '+=', as the planner says.
template <class At>
HWY_INLINE void put(At at, V32 value, float* row, bool add) {
  at.store(add ? hn::Add(at.load(row), value) : value, row);
}

HWY_INLINE float sum_of_lanes(V32 value) {
  return hn::GetLane(hn::SumOfLanes(F32(), value));
}
HWY_INLINE float max_of_lanes(V32 value) {
  return hn::GetLane(hn::MaxOfLanes(F32(), value));
}

// sum over i of term(at); lanes past the end must give 0.
template <class Term>
HWY_INLINE float sum_lanes(std::int64_t count, Term term) {
  V32 sum = hn::Zero(F32());
  for_lanes(count, [&](auto at) HWY_ATTR { sum = hn::Add(sum, term(at)); });
  return sum_of_lanes(sum);
}

HWY_INLINE float dot(const float* a, const float* b, std::int64_t count) {
  V32 sum = hn::Zero(F32());
  for_lanes(count, [&](auto at) HWY_ATTR { sum = hn::MulAdd(at.load(a), at.load(b), sum); });
  return sum_of_lanes(sum);
}

// y += a x
HWY_INLINE void add_multiple(float a, const float* x, float* y, std::int64_t count) {
  const V32 factor = all(a);
  for_lanes(count, [&](auto at) HWY_ATTR { at.store(hn::MulAdd(factor, at.load(x), at.load(y)), y); });
}

// Highway's Exp is wrong above 88.7 and gives 0 for NaN: infinity and NaN must stay visible.
HWY_INLINE V32 exp_lanes(V32 x) {
  const V32 limit = all(88.72f);
  const V32 inside = hn::Exp(F32(), hn::Min(x, limit));
  const V32 bounded = hn::IfThenElse(hn::Gt(x, limit), all(std::numeric_limits<float>::infinity()), inside);
  return hn::IfThenElse(hn::Eq(x, x), bounded, x);
}

HWY_INLINE V32 tanh_lanes(V32 x) {
  return hn::IfThenElse(hn::Eq(x, x), hn::Tanh(F32(), x), x);
}

HWY_INLINE V32 sigmoid_lanes(V32 x) {
  return hn::Div(all(1), hn::Add(all(1), exp_lanes(hn::Neg(x))));
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#endif
