// Loops shared by block_product_vnni and block_product_avx2. Each includes this file once, after
// defining THIMBLE_ROWS (the target of its functions) and `Level`: the vectors and their products.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "ops/cpu/block_products.h"

// Inlining is forced, as in linear_rows-inl.h.
#define THIMBLE_ROWS_INLINE THIMBLE_ROWS inline __attribute__((always_inline))

namespace thimble::cpu {
namespace {

// ---- Unpacking a row of w.

THIMBLE_ROWS_INLINE __m256i bytes_at(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
THIMBLE_ROWS_INLINE void put_bytes(__m256i bytes, void* to) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), bytes);
}
THIMBLE_ROWS_INLINE float half_at(const std::byte* from) {
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return _cvtsh_ss(bits);
}

// The low halves of 16 bytes, then the high halves.
THIMBLE_ROWS_INLINE __m256i nibbles_at(const std::byte* from) {
  const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(both, 4), both), _mm256_set1_epi8(15));
}

// 16 in byte i if bit i is set.
THIMBLE_ROWS_INLINE __m256i fifth_bits_at(const std::byte* from) {
  std::int32_t bits;
  std::memcpy(&bits, from, sizeof bits);
  const __m256i byte_of_lane =
      _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
  const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
  const __m256i here = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), byte_of_lane), bit);
  return _mm256_and_si256(_mm256_cmpeq_epi8(here, bit), _mm256_set1_epi8(16));
}

// Four numbers of f16 that are `bytes` apart. They are collected in a register, because loading
// them from memory that was just written in parts would wait until the parts are in the cache.
template <std::int64_t bytes>
THIMBLE_ROWS_INLINE __m128 four_halves_at(const std::byte* from) {
  std::uint16_t h[4];
  for (int i = 0; i < 4; ++i) std::memcpy(&h[i], from + i * bytes, sizeof h[i]);
  __m128i all = _mm_cvtsi32_si128(h[0]);
  all = _mm_insert_epi16(all, h[1], 1);
  all = _mm_insert_epi16(all, h[2], 2);
  all = _mm_insert_epi16(all, h[3], 3);
  return _mm_cvtph_ps(all);
}

// Rows of Q8_0, Q4 and Q5 types.
template <GgufType type>
struct Blocks32 {
  static constexpr std::int64_t kBytes = block_size(type).bytes;
  static constexpr bool kMinimum = type == GgufType::q4_1 || type == GgufType::q5_1;
  static constexpr bool kFifth = type == GgufType::q5_0 || type == GgufType::q5_1;
  static constexpr float kMiddle = type == GgufType::q8_0 ? 128 : kFifth ? 16 : 8;

  THIMBLE_ROWS_INLINE static __m256i numbers(const std::byte* from) {
    from += kMinimum ? 4 : 2;
    if constexpr (type == GgufType::q8_0)
      return Level::kKeepsSign ? bytes_at(from) : _mm256_xor_si256(bytes_at(from), _mm256_set1_epi8(-128));
    if constexpr (kFifth) return _mm256_or_si256(nibbles_at(from + 4), fifth_bits_at(from));
    return nibbles_at(from);
  }

  THIMBLE_ROWS_INLINE static void unpack(const std::byte* from, std::int64_t blocks, const WeightRow& to) {
    std::int64_t b = 0;
    for (; b + 4 <= blocks; b += 4, from += 4 * kBytes) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) put_bytes(numbers(from + i * kBytes), to.numbers + 32 * (b + i));
      const __m128 scale = four_halves_at<kBytes>(from);
      _mm_storeu_ps(to.scales + b, scale);
      _mm_storeu_ps(to.mins + b, kMinimum ? _mm_sub_ps(_mm_setzero_ps(), four_halves_at<kBytes>(from + 2))
                                          : _mm_mul_ps(scale, _mm_set1_ps(kMiddle)));
    }
    for (; b < blocks; ++b, from += kBytes) {
      put_bytes(numbers(from), to.numbers + 32 * b);
      to.scales[b] = half_at(from);
      to.mins[b] = kMinimum ? -half_at(from + 2) : to.scales[b] * kMiddle;
    }
  }
};

// d s and dmin t of a block of Q4_K or Q5_K (the packing: tensor/block_rows.cpp).
THIMBLE_ROWS_INLINE void put_group_scales(const std::byte* from, float* scales, float* mins) {
  std::uint32_t packed[3];
  std::memcpy(packed, from + 4, sizeof packed);
  const std::uint32_t bytes[4] = {
      packed[0] & 0x3F3F3F3Fu, (packed[2] & 0x0F0F0F0Fu) | (packed[0] >> 6 & 0x03030303u) << 4,
      packed[1] & 0x3F3F3F3Fu, (packed[2] >> 4 & 0x0F0F0F0Fu) | (packed[1] >> 6 & 0x03030303u) << 4};
  const __m128i all = _mm_set_epi32(static_cast<int>(bytes[3]), static_cast<int>(bytes[2]),
                                    static_cast<int>(bytes[1]), static_cast<int>(bytes[0]));
  const __m256 s = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(all));
  const __m256 t = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(all, 8)));
  _mm256_storeu_ps(scales, _mm256_mul_ps(_mm256_set1_ps(half_at(from)), s));
  _mm256_storeu_ps(mins, _mm256_mul_ps(_mm256_set1_ps(half_at(from + 2)), t));
}

template <bool fifth>
THIMBLE_ROWS_INLINE void unpack_k(const std::byte* from, std::int64_t blocks, const WeightRow& to) {
  const __m256i fifteen = _mm256_set1_epi8(15), sixteen = _mm256_set1_epi8(16);
  for (std::int64_t b = 0; b < blocks; ++b) {
    put_group_scales(from, to.scales + 8 * b, to.mins + 8 * b);
    std::uint8_t* const q = to.numbers + 256 * b;
    const std::byte* nibbles = from + (fifth ? 48 : 16);
    __m256i bits = fifth ? bytes_at(from + 16) : fifteen;
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m256i both = bytes_at(nibbles + 32 * j);
      __m256i low = _mm256_and_si256(both, fifteen);
      __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), fifteen);
      if constexpr (fifth) {
        low = _mm256_or_si256(low, _mm256_and_si256(_mm256_slli_epi16(bits, 4), sixteen));
        high = _mm256_or_si256(high, _mm256_and_si256(_mm256_slli_epi16(bits, 3), sixteen));
        bits = _mm256_srli_epi16(bits, 2);
      }
      put_bytes(low, q + 64 * j);
      put_bytes(high, q + 64 * j + 32);
    }
    from += block_size(fifth ? GgufType::q5_k : GgufType::q4_k).bytes;
  }
}

THIMBLE_ROWS_INLINE void unpack_q6_k(const std::byte* from, std::int64_t blocks, const WeightRow& to) {
  const __m256i fifteen = _mm256_set1_epi8(15), two_bits = _mm256_set1_epi8(0x30);
  for (std::int64_t b = 0; b < blocks; ++b, from += block_size(GgufType::q6_k).bytes) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      std::uint8_t* const q = to.numbers + 256 * b + 128 * half;
      const __m256i x = bytes_at(from + 64 * half), y = bytes_at(from + 64 * half + 32),
                    h = bytes_at(from + 128 + 32 * half);
      const __m256i h0 = _mm256_and_si256(_mm256_slli_epi16(h, 4), two_bits),
                    h1 = _mm256_and_si256(_mm256_slli_epi16(h, 2), two_bits),
                    h2 = _mm256_and_si256(h, two_bits),
                    h3 = _mm256_and_si256(_mm256_srli_epi16(h, 2), two_bits);
      put_bytes(_mm256_or_si256(_mm256_and_si256(x, fifteen), h0), q);
      put_bytes(_mm256_or_si256(_mm256_and_si256(y, fifteen), h1), q + 32);
      put_bytes(_mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(x, 4), fifteen), h2), q + 64);
      put_bytes(_mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(y, 4), fifteen), h3), q + 96);
    }
    const __m256 d = _mm256_set1_ps(half_at(from + 208));
#pragma GCC unroll 2
    for (int i = 0; i < 16; i += 8) {
      const __m128i s = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 192 + i));
      const __m256 scale = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(s)));
      _mm256_storeu_ps(to.scales + 16 * b + i, scale);
      _mm256_storeu_ps(to.mins + 16 * b + i, _mm256_mul_ps(scale, _mm256_set1_ps(32)));
    }
  }
}

// Prefetching overlaps reading memory with arithmetic: the hardware stops at the end of each page.
THIMBLE_ROWS_INLINE void prefetch_row(const std::byte* from, std::int64_t bytes) {
  constexpr std::int64_t kAhead = 6144;
  for (std::int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + kAhead + at);
}

THIMBLE_ROWS void unpack(const BlockRows& rows, std::int64_t row, const WeightRow& to) {
  const std::byte* from = rows.row(row);
  prefetch_row(from, rows.row_bytes());
  const std::int64_t padded = IntegerRows::padded_columns(rows.cols);
  const std::int64_t blocks = rows.cols / block_size(rows.type).numbers;
  switch (rows.type) {
    case GgufType::q8_0:
      Blocks32<GgufType::q8_0>::unpack(from, blocks, to);
      break;
    case GgufType::q4_0:
      Blocks32<GgufType::q4_0>::unpack(from, blocks, to);
      break;
    case GgufType::q4_1:
      Blocks32<GgufType::q4_1>::unpack(from, blocks, to);
      break;
    case GgufType::q5_0:
      Blocks32<GgufType::q5_0>::unpack(from, blocks, to);
      break;
    case GgufType::q5_1:
      Blocks32<GgufType::q5_1>::unpack(from, blocks, to);
      break;
    case GgufType::q4_k:
      unpack_k<false>(from, blocks, to);
      break;
    case GgufType::q5_k:
      unpack_k<true>(from, blocks, to);
      break;
    case GgufType::q6_k:
      unpack_q6_k(from, blocks, to);
      break;
    default:
      unpack_integers(rows, row, Level::kKeepsSign, to);
  }
  const std::int64_t group = columns_per_scale(rows.type), groups = rows.cols / group;
  std::fill(to.scales + groups, to.scales + padded / group, 0.0f);
  std::fill(to.mins + groups, to.mins + padded / group, 0.0f);
}

// ---- Results.

constexpr int kLanes = Level::kLanes;

template <class T>
THIMBLE_ROWS_INLINE void put_results(const BlockProduct& p, const float* sums, std::int64_t n, std::int64_t o,
                                     std::int64_t count) {
  T* const y = p.y.row<T>(n) + o;
  const float* const bias = p.bias ? p.bias.row<float>(0) + o : nullptr;
  for (std::int64_t j = 0; j < count; ++j) {
    const float sum = bias ? sums[j] + bias[j] : sums[j];
    if constexpr (std::is_same_v<T, float>)
      y[j] = sum;
    else
      y[j] = to_bf16(sum);
  }
}

THIMBLE_ROWS_INLINE void put_sums(const BlockProduct& p, Level::Floats sums, std::int64_t n, std::int64_t o) {
  alignas(64) float each[kLanes];
  Level::put(sums, each);
  const std::int64_t count = std::min<std::int64_t>(kLanes, p.count - o);
  p.y.dtype == DType::bf16 ? put_results<bf16>(p, each, n, o, count)
                           : put_results<float>(p, each, n, o, count);
}

// ---- A few rows of x: each row of w is unpacked and multiplied.

// Adds the product of a row of x and a row of w for kLanes groups at a time.
template <int group, bool is_signed>
THIMBLE_ROWS_INLINE Level::Floats row_product(const WeightRow& w, const std::int8_t* x, const float* scales,
                                              const float* sums, std::int64_t padded) {
  Level::Floats sum = Level::zero();
  for (std::int64_t g = 0; g < padded / group; g += kLanes) {
    const Level::Floats dots = Level::template groups<group, is_signed>(w.numbers + g * group, x + g * group);
    sum = Level::multiply_add(dots, Level::multiply(Level::at(w.scales + g), Level::at(scales + g)), sum);
    if constexpr (!is_signed) sum = Level::subtract_product(Level::at(w.mins + g), Level::at(sums + g), sum);
  }
  return sum;
}

// Memory for row j of w.
THIMBLE_ROWS_INLINE WeightRow weight_row(const BlockProduct& p, std::int64_t j) {
  return {p.memory + j * WeightRow::bytes(p.w->cols), p.x->padded};
}

template <int group, bool is_signed, int R>
THIMBLE_ROWS void few_rows(const BlockProduct& p) {
  // Rows unpacked before they are multiplied: a vector that was just written in parts can only be
  // read when the parts are in the cache.
  constexpr std::int64_t kUnpacked = 4;
  static_assert(kLanes % kUnpacked == 0);
  const IntegerRows& x = *p.x;
  for (std::int64_t o = 0; o < p.count; o += kLanes) {
    Level::Floats sums[R][kLanes];
    for (std::int64_t j = 0; j < kLanes; j += kUnpacked) {
      // Past the end the last row is repeated, and those results are not stored.
      for (std::int64_t i = 0; i < kUnpacked; ++i)
        unpack(*p.w, p.first + std::min(o + j + i, p.count - 1), weight_row(p, i));
      for (std::int64_t i = 0; i < kUnpacked; ++i)
        for (int r = 0; r < R; ++r)
          sums[r][j + i] = row_product<group, is_signed>(weight_row(p, i), x.numbers(r), x.scales(r, group),
                                                         x.sums(r, group), x.padded);
    }
    for (int r = 0; r < R; ++r) put_sums(p, Level::sums_of(sums[r]), r, o);
  }
}

// ---- Tiles: kLanes rows of w, a vector for every four columns.

// The order in which tiles add lanes, so that the lanes are added as in Level::sums_of: 0 + 2 and
// 1 + 3 of each four, then their sums, and so on.
constexpr std::array<int, kLanes> kOrder = [] {
  std::array<int, kLanes> order{};
  for (int i = 0; i < kLanes; ++i) order[static_cast<std::size_t>(i)] = i / 4 * 4 + i % 2 * 2 + i / 2 % 2;
  return order;
}();

struct Tile {
  std::uint8_t* numbers;  // [groups][group / 4][kLanes][4]
  float *scales, *mins;   // [groups][kLanes]

  Tile(std::byte* memory, std::int64_t cols, std::int64_t group)
      : numbers(reinterpret_cast<std::uint8_t*>(memory)),
        scales(reinterpret_cast<float*>(memory + cols * kLanes)),
        mins(scales + cols / group * kLanes) {}
};

// The groups are stored in the order in which they are added.
template <int group>
THIMBLE_ROWS void make_tile(const BlockProduct& p, std::int64_t o, const Tile& to) {
  const std::int64_t cols = p.w->cols, groups = cols / group;
  for (std::int64_t j = 0; j < kLanes; ++j) {
    const WeightRow row = weight_row(p, j);
    if (o + j < p.count) {
      unpack(*p.w, p.first + o + j, row);
      continue;
    }
    std::memset(row.numbers, 0, index_of(cols));
    std::fill_n(row.scales, p.x->padded / group, 0.0f);
    std::fill_n(row.mins, p.x->padded / group, 0.0f);
  }
  std::int64_t places[kLanes], next = 0;  // of the first group of each lane
  for (const int lane : kOrder) {
    places[lane] = next;
    next += (groups - lane + kLanes - 1) / kLanes;
  }
  const auto place = [&](std::int64_t g) { return places[g % kLanes] + g / kLanes; };
  const void* from[kLanes];
  alignas(64) float vectors[kLanes][kLanes];
  constexpr int kVectors = group / 4, kGroups = kLanes / kVectors;  // per group, and transposed together
  for (std::int64_t g = 0; g < groups; g += kGroups) {
    for (int j = 0; j < kLanes; ++j) from[j] = weight_row(p, j).numbers + g * group;
    Level::transpose(from, vectors);
    for (int i = 0; i < kGroups && g + i < groups; ++i)
      std::memcpy(to.numbers + place(g + i) * group * kLanes, vectors[i * kVectors],
                  kVectors * sizeof vectors[0]);
  }
  for (std::int64_t g = 0; g < groups; g += kLanes)
    for (const bool mins : {false, true}) {
      for (int j = 0; j < kLanes; ++j) from[j] = (mins ? weight_row(p, j).mins : weight_row(p, j).scales) + g;
      Level::transpose(from, vectors);
      for (int lane = 0; lane < kLanes && g + lane < groups; ++lane)
        std::memcpy((mins ? to.mins : to.scales) + place(g + lane) * kLanes, vectors[lane],
                    sizeof vectors[0]);
    }
}

// Multiplies R of the interleaved rows of x from n on by a tile.
template <int group, bool is_signed, int R>
THIMBLE_ROWS void tile_rows(const BlockProduct& p, const Tile& tile, std::int64_t n, std::int64_t o) {
  constexpr int kTogether = Level::kTogether;
  const std::int64_t groups = p.w->cols / group;
  const std::int8_t* const numbers = p.x->numbers(n);
  const float *const x_scales = p.x->scales(n, group), *const x_sums = p.x->sums(n, group);
  const std::uint8_t* w = tile.numbers;
  const float *scales = tile.scales, *mins = tile.mins;
  Level::Floats open[5][R];  // sums of 1, 2, 4 ... lanes that wait for their other half
  for (int pass = 0; pass < kLanes; ++pass) {
    Level::Floats sum[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = Level::zero();
    for (std::int64_t g = kOrder[static_cast<std::size_t>(pass)]; g < groups; g += kLanes) {
      typename Level::Floats dots[R];
      Level::template tile_group<group, is_signed, R>(w, numbers + g * group * kTogether, dots);
      const Level::Floats scale = Level::at(scales), min = Level::at(mins);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Level::Floats both = Level::multiply(scale, Level::all(x_scales + g * kTogether + r));
        sum[r] = Level::multiply_add(dots[r], both, sum[r]);
        if constexpr (!is_signed)
          sum[r] = Level::subtract_product(min, Level::all(x_sums + g * kTogether + r), sum[r]);
      }
      w += group * kLanes;
      scales += kLanes;
      mins += kLanes;
    }
    int level = 0;
    for (; pass >> level & 1; ++level)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r] = Level::add(open[level][r], sum[r]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) open[level][r] = sum[r];
  }
  constexpr int kLast = kLanes == 16 ? 4 : 3;
  for (int r = 0; r < R && n + r < p.x->rows; ++r) put_sums(p, open[kLast][r], n + r, o);
}

template <int group, bool is_signed>
THIMBLE_ROWS void many_rows(const BlockProduct& p) {
  constexpr int kTogether = Level::kTogether;
  const Tile tile(p.memory + kLanes * WeightRow::bytes(p.w->cols), p.w->cols, group);
  for (std::int64_t o = 0; o < p.count; o += kLanes) {
    make_tile<group>(p, o, tile);
    for (std::int64_t n = 0; n < p.x->rows; n += kTogether)
      if (p.x->rows - n <= kTogether / 2)
        tile_rows<group, is_signed, kTogether / 2>(p, tile, n, o);
      else
        tile_rows<group, is_signed, kTogether>(p, tile, n, o);
  }
}

template <int group, bool is_signed>
void any_rows(const BlockProduct& p) {
  if (p.x->together > 1) return many_rows<group, is_signed>(p);
  p.x->rows == 1 ? few_rows<group, is_signed, 1>(p) : few_rows<group, is_signed, 2>(p);
}

void multiply_blocks(const BlockProduct& p) {
  if (columns_per_scale(p.w->type) == 16) return any_rows<16, false>(p);
  if (Level::kKeepsSign && has_signed_bytes(p.w->type)) return any_rows<32, Level::kKeepsSign>(p);
  any_rows<32, false>(p);
}

}  // namespace
}  // namespace thimble::cpu
