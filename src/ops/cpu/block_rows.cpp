// Decoding of block rows (tensor/block_rows.h) for products and lookups: f32 or bf16, on every CPU
// level. Values equal those of decode_blocks() bit for bit, then are rounded to bf16.
//
// The types that models for inference commonly have are decoded in vectors; the others by
// decode_blocks(), block by block.
#include "tensor/block_rows.h"

#include <algorithm>
#include <array>

#include "ops/cpu/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/block_rows.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

using I32 = hn::RebindToSigned<F32>;
using VI32 = hn::Vec<I32>;
using U8 = hn::Rebind<std::uint8_t, F32>;

template <class Vector, class D, class T>
HWY_INLINE void store_part(Vector values, D d, T* to, std::size_t count) {
  alignas(64) T all[16];
  hn::Store(values, d, all);
  std::copy_n(all, count, to);
}

// Where values go.
struct ToFloats {
  float* to;
  HWY_INLINE void store(V32 value, std::size_t i) const { hn::StoreU(value, F32(), to + i); }
  HWY_INLINE void store_first(V32 value, std::size_t count) const { store_part(value, F32(), to, count); }
  ToFloats operator+(std::size_t i) const { return {to + i}; }
};
template <bool in_hardware>
struct ToBf16 {
  std::uint16_t* to;
  HWY_INLINE void store(V32 value, std::size_t i) const { hn::StoreU(rounded(value), U16(), to + i); }
  HWY_INLINE void store_first(V32 value, std::size_t count) const {
    store_part(rounded(value), U16(), to, count);
  }
  HWY_INLINE static hn::Vec<U16> rounded(V32 value) {
    return in_hardware ? narrow_in_hardware(value) : narrow(value);
  }
  ToBf16 operator+(std::size_t i) const { return {to + i}; }
};

HWY_INLINE const std::uint8_t* bytes_at(const std::byte* from) {
  return reinterpret_cast<const std::uint8_t*>(from);
}

HWY_INLINE float half_at(const std::byte* from) {
  using One = hn::CappedTag<float, 1>;
  const hn::Rebind<hwy::float16_t, One> half;
  return hn::GetLane(hn::PromoteTo(One(), hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(from))));
}

HWY_INLINE VI32 unsigned_at(const std::byte* from) {
  return hn::PromoteTo(I32(), hn::LoadU(U8(), bytes_at(from)));
}
HWY_INLINE VI32 signed_at(const std::byte* from) {
  return hn::PromoteTo(I32(), hn::LoadU(I8(), reinterpret_cast<const std::int8_t*>(from)));
}

// Lane i is 1 << i. Vectors have at most 16 lanes.
HWY_INLINE VI32 bit_of_lane() {
  alignas(64) static constexpr std::array<std::int32_t, 16> kBits = [] {
    std::array<std::int32_t, 16> bits{};
    for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = 1 << i;
    return bits;
  }();
  return hn::Load(I32(), kBits.data());
}

// Rows of a file are decoded in order. Prefetching overlaps reading memory with decoding and with
// the products between two groups of rows; the hardware stops at the end of each page of 4 KiB.
HWY_INLINE void prefetch(const std::byte* from, std::int64_t bytes) {
  constexpr std::int64_t kAhead = 6144, kLine = 64;
  for (std::int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(from + kAhead + at);
}

// Calls body(i) for the first of each vector of `count` numbers.
template <class Body>
HWY_INLINE void for_vectors(std::size_t count, const Body& body) {
  const std::size_t lanes = hn::Lanes(F32());
  for (std::size_t i = 0; i < count; i += lanes) body(i);
}

template <class To>
HWY_INLINE void q8_0(const std::byte* from, To to) {
  const V32 d = all(half_at(from));
  for_vectors(32, [&](std::size_t i)
                      HWY_ATTR { to.store(hn::Mul(hn::ConvertTo(F32(), signed_at(from + 2 + i)), d), i); });
}

// Q4_0, Q4_1, Q5_0 and Q5_1: with a fifth bit of each number, with a minimum or minus a middle.
template <bool fifth, bool minimum, class To>
HWY_INLINE void nibbles_of_32(const std::byte* from, To to) {
  constexpr std::size_t kHeader = minimum ? 4 : 2;
  const V32 d = all(half_at(from)), m = all(minimum ? half_at(from + 2) : 0.0f);
  const VI32 middle = hn::Set(I32(), fifth ? 16 : 8), sixteen = hn::Set(I32(), 16), bit = bit_of_lane();
  std::uint32_t bits = 0;
  if (fifth) std::memcpy(&bits, from + kHeader, sizeof bits);
  const std::byte* nibbles = from + kHeader + (fifth ? 4 : 0);
  const auto put = [&](VI32 q, std::size_t i) HWY_ATTR {
    if (fifth) {
      const VI32 here = hn::Set(I32(), static_cast<std::int32_t>(bits >> i));
      q = hn::Add(q, hn::IfThenElseZero(hn::TestBit(here, bit), sixteen));
    }
    if (!minimum) q = hn::Sub(q, middle);
    const V32 value = hn::Mul(hn::ConvertTo(F32(), q), d);
    to.store(minimum ? hn::Add(value, m) : value, i);
  };
  for_vectors(16, [&](std::size_t i) HWY_ATTR {
    const VI32 both = unsigned_at(nibbles + i);
    put(hn::And(both, hn::Set(I32(), 15)), i);
    put(hn::ShiftRight<4>(both), i + 16);
  });
}

// d s and dmin t of the eight groups of a block of Q4_K or Q5_K.
struct GroupScales {
  alignas(32) float scale[8], min[8];

  HWY_INLINE explicit GroupScales(const std::byte* from) {
    std::uint32_t packed[3];
    std::memcpy(packed, from + 4, sizeof packed);
    const std::uint32_t bytes[4] = {
        packed[0] & 0x3F3F3F3Fu, (packed[2] & 0x0F0F0F0Fu) | (packed[0] >> 6 & 0x03030303u) << 4,
        packed[1] & 0x3F3F3F3Fu, (packed[2] >> 4 & 0x0F0F0F0Fu) | (packed[1] >> 6 & 0x03030303u) << 4};
    const auto* each = reinterpret_cast<const std::uint8_t*>(bytes);
    const hn::CappedTag<float, 8> floats;
    const hn::Rebind<std::int32_t, decltype(floats)> whole;
    const hn::Rebind<std::uint8_t, decltype(floats)> byte;
    const auto d = hn::Set(floats, half_at(from)), dmin = hn::Set(floats, half_at(from + 2));
    const auto number = [&](std::size_t i) HWY_ATTR {
      return hn::ConvertTo(floats, hn::PromoteTo(whole, hn::LoadU(byte, each + i)));
    };
    for (std::size_t i = 0; i < 8; i += hn::Lanes(floats)) {
      hn::Store(hn::Mul(d, number(i)), floats, scale + i);
      hn::Store(hn::Mul(dmin, number(8 + i)), floats, min + i);
    }
  }
};

// Q4_K, and Q5_K with bit j of byte i % 32 of `fifth` for number i of group j.
template <bool fifth, class To>
HWY_INLINE void nibbles_of_256(const std::byte* from, To to) {
  const GroupScales of(from);
  const std::byte *bits = from + 16, *nibbles = from + (fifth ? 48 : 16);
  const VI32 sixteen = hn::Set(I32(), 16);
  for (std::size_t j = 0; j < 8; j += 2) {
    const VI32 low_bit = hn::Set(I32(), 1 << j), high_bit = hn::Set(I32(), 2 << j);
    const V32 low_scale = all(of.scale[j]), high_scale = all(of.scale[j + 1]);
    const V32 low_min = all(of.min[j]), high_min = all(of.min[j + 1]);
    for_vectors(32, [&](std::size_t i) HWY_ATTR {
      const VI32 both = unsigned_at(nibbles + 16 * j + i);
      VI32 low = hn::And(both, hn::Set(I32(), 15)), high = hn::ShiftRight<4>(both);
      if (fifth) {
        const VI32 here = unsigned_at(bits + i);
        low = hn::Add(low, hn::IfThenElseZero(hn::TestBit(here, low_bit), sixteen));
        high = hn::Add(high, hn::IfThenElseZero(hn::TestBit(here, high_bit), sixteen));
      }
      to.store(hn::Sub(hn::Mul(low_scale, hn::ConvertTo(F32(), low)), low_min), 32 * j + i);
      to.store(hn::Sub(hn::Mul(high_scale, hn::ConvertTo(F32(), high)), high_min), 32 * j + 32 + i);
    });
  }
}

template <class To>
HWY_INLINE void q6_k(const std::byte* from, To to) {
  const float d = half_at(from + 208);
  const VI32 fifteen = hn::Set(I32(), 15), fifth_and_sixth = hn::Set(I32(), 0x30),
             middle = hn::Set(I32(), 32);
  for (std::size_t half = 0; half < 2; ++half) {
    const std::byte *low = from + 64 * half, *high = from + 128 + 32 * half, *scales = from + 192 + 8 * half;
    const To out = to + 128 * half;
    for (std::size_t group = 0; group < 2; ++group) {  // 16 numbers of each 32
      const auto scale = [&](std::size_t quarter) HWY_ATTR {
        const auto s = static_cast<std::int8_t>(scales[2 * quarter + group]);
        return all(d * static_cast<float>(s));
      };
      const V32 s[4] = {scale(0), scale(1), scale(2), scale(3)};
      for_vectors(16, [&](std::size_t l) HWY_ATTR {
        const std::size_t i = 16 * group + l;
        const VI32 a = unsigned_at(low + i), b = unsigned_at(low + 32 + i), h = unsigned_at(high + i);
        const auto put = [&](VI32 four, VI32 two, std::size_t quarter) HWY_ATTR {
          const VI32 q = hn::Sub(hn::Or(four, hn::And(two, fifth_and_sixth)), middle);
          out.store(hn::Mul(s[quarter], hn::ConvertTo(F32(), q)), 32 * quarter + i);
        };
        put(hn::And(a, fifteen), hn::ShiftLeft<4>(h), 0);
        put(hn::And(b, fifteen), hn::ShiftLeft<2>(h), 1);
        put(hn::ShiftRight<4>(a), h, 2);
        put(hn::ShiftRight<4>(b), hn::ShiftRight<2>(h), 3);
      });
    }
  }
}

// Other types: by the reference, then rounded.
template <class To>
void by_reference(GgufType type, const std::byte* from, To to) {
  const BlockSize size = block_size(type);
  std::array<float, kGgufSuperBlock> values;
  decode_blocks(type, std::span(from, static_cast<std::size_t>(size.bytes)),
                std::span(values).first(static_cast<std::size_t>(size.numbers)));
  for_vectors(static_cast<std::size_t>(size.numbers),
              [&](std::size_t i) HWY_ATTR { to.store(hn::LoadU(F32(), values.data() + i), i); });
}

// Whole rows of F16.
template <class To>
HWY_INLINE void halves(const BlockRows& rows, const std::byte* from, To to) {
  const auto* half = reinterpret_cast<const f16*>(from);
  const auto cols = static_cast<std::size_t>(rows.cols), lanes = hn::Lanes(F32());
  std::size_t i = 0;
  for (; i + lanes <= cols; i += lanes) {
    prefetch(from + 2 * i, 1);
    to.store(widen(load_half(half + i)), i);
  }
  if (i == cols) return;
  std::array<f16, 16> last{};  // vectors have at most 16 lanes
  std::memcpy(last.data(), half + i, (cols - i) * sizeof(f16));
  (to + i).store_first(widen(load_half(last.data())), cols - i);
}

template <class To, class Block>
HWY_INLINE void for_blocks(const BlockRows& rows, const std::byte* from, To to, const Block& block) {
  const BlockSize size = block_size(rows.type);
  for (std::int64_t col = 0; col < rows.cols; col += size.numbers, from += size.bytes) {
    prefetch(from, size.bytes);
    block(from, to + static_cast<std::size_t>(col));
  }
}

template <class To>
void unpack_to(const BlockRows& rows, const std::byte* from, To to) {
  switch (rows.type) {
    case GgufType::f16:
      return halves(rows, from, to);
    case GgufType::q8_0:
      return for_blocks(rows, from, to, [](const std::byte* at, To x) HWY_ATTR { q8_0(at, x); });
    case GgufType::q4_0:
      return for_blocks(rows, from, to,
                        [](const std::byte* at, To x) HWY_ATTR { nibbles_of_32<false, false>(at, x); });
    case GgufType::q4_1:
      return for_blocks(rows, from, to,
                        [](const std::byte* at, To x) HWY_ATTR { nibbles_of_32<false, true>(at, x); });
    case GgufType::q5_0:
      return for_blocks(rows, from, to,
                        [](const std::byte* at, To x) HWY_ATTR { nibbles_of_32<true, false>(at, x); });
    case GgufType::q5_1:
      return for_blocks(rows, from, to,
                        [](const std::byte* at, To x) HWY_ATTR { nibbles_of_32<true, true>(at, x); });
    case GgufType::q4_k:
      return for_blocks(rows, from, to,
                        [](const std::byte* at, To x) HWY_ATTR { nibbles_of_256<false>(at, x); });
    case GgufType::q5_k:
      return for_blocks(rows, from, to,
                        [](const std::byte* at, To x) HWY_ATTR { nibbles_of_256<true>(at, x); });
    case GgufType::q6_k:
      return for_blocks(rows, from, to, [](const std::byte* at, To x) HWY_ATTR { q6_k(at, x); });
    default:
      return for_blocks(rows, from, to,
                        [&](const std::byte* at, To x) HWY_ATTR { by_reference(rows.type, at, x); });
  }
}

void unpack_blocks(const BlockRows& rows, std::int64_t row, const Tensor& to, std::int64_t to_row) {
  const std::byte* from = rows.row(row);
  if (to.dtype != DType::bf16) return unpack_to(rows, from, ToFloats{to.row<float>(to_row)});
  std::uint16_t* const bits = &to.row<bf16>(to_row)->bits;
#if HWY_TARGET == HWY_AVX3
  if (rounds_bf16_in_hardware()) return unpack_to(rows, from, ToBf16<true>{bits});
#endif
  unpack_to(rows, from, ToBf16<false>{bits});
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(unpack_blocks);

namespace {

DType float_dtype_of(GgufType type) {
  switch (type) {
    case GgufType::f32:
      return DType::f32;
    case GgufType::f16:
      return DType::f16;
    case GgufType::bf16:
      return DType::bf16;
    default:
      return DType::blocks;
  }
}

Tensor floats_of(const BlockRows& part) {
  return {const_cast<std::byte*>(part.data), part.rows,  part.cols, part.cols,
          float_dtype_of(part.type),         Device::cpu};
}

}  // namespace

Tensor plain_rows(const Tensor& w, std::int64_t first, std::int64_t count) {
  const BlockRows& part = block_matrix(w).part_of(first);
  const bool plain = part.head_dim == 0 && float_dtype_of(part.type) != DType::blocks;
  return plain && first + count <= part.rows ? floats_of(part).row_range(first, count) : Tensor{};
}

void unpack_block_row(const Tensor& w, std::int64_t row, const Tensor& to, std::int64_t to_row) {
  const BlockRows& part = block_matrix(w).part_of(row);
  if (part.type == GgufType::f32 || part.type == GgufType::bf16) {
    BlockRows one = part;
    one.data = part.row(row), one.rows = 1, one.head_dim = 0;
    return unpack_row(floats_of(one), {}, 0, to, to_row);
  }
  HWY_DYNAMIC_DISPATCH(unpack_blocks)(part, row, to, to_row);
}

}  // namespace thimble::cpu
#endif
