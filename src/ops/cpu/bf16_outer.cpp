// c += a^T b for bf16 a [R, M], b [R, N] with many rows R, and f32 c [M, N]: a weight gradient.
//
// oneDNN 2.6 reaches 0.86 of its own peak here, because it transposes a. With rows in pairs
// (bf16_tiles.h) no transpose is needed: a word of a is a broadcast and a vector of b is a load.
// Both are copied, 4096 rows at a time, into panels that are read sequentially. Same bits for any
// number of threads.
#include "base/error.h"
#include "base/parallel.h"
#include "ops/cpu/bf16_tiles.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/row_blocks.h"

namespace thimble::cpu {

namespace {

// 8 x 3 vectors of sums leave 8 registers. A panel of b of 4096 rows has 384 KiB and stays in L2.
constexpr std::int64_t kLeft = 8, kRight = 48, kDepth = 4096;
constexpr std::int64_t kPairsPerTask = 8;  // so that each task writes whole cache lines of a panel

constexpr std::int64_t panels(std::int64_t width, std::int64_t each) {
  return (width + each - 1) / each;
}

struct Panels {
  std::int64_t left_pitch, right_pitch;  // words from one panel to the next
  std::uint32_t* left;                   // [M / kLeft, pairs, kLeft]
  std::uint32_t* right;                  // [N / kRight, pairs, kRight]

  Panels(ScratchCutter& cutter, std::int64_t R, std::int64_t M, std::int64_t N) {
    // Padding: a power-of-two pitch would map panels to the same sets.
    constexpr std::int64_t kLine = 16;
    const std::int64_t pairs = (std::min(R, kDepth) + 1) / 2;
    left_pitch = pairs * kLeft + kLine, right_pitch = pairs * kRight + kLine;
    cutter.take(left, panels(M, kLeft) * left_pitch);
    cutter.take(right, panels(N, kRight) * right_pitch);
  }
};

}  // namespace

bool uses_outer_sum(std::int64_t R, std::int64_t M, std::int64_t N) {
  constexpr std::int64_t kMinSize = 128;  // below this, packing costs more than it saves
  return R >= kMinSize && M >= kMinSize && N >= kMinSize && multiplies_bf16_pairs() &&
         !cpu_features().amx_bf16;
}

std::int64_t outer_sum_bytes(std::int64_t R, std::int64_t M, std::int64_t N) {
  ScratchCutter cutter;
  Panels(cutter, R, M, N);
  return cutter.bytes();
}

#if defined(__x86_64__)

namespace {

using pairs::kLanes;

// Words of rows (row, row + 1) of x and 16 columns; zeros outside the tensor.
THIMBLE_BF16_PAIRS __m512i words_at_edge(const Tensor& x, std::int64_t row, std::int64_t column) {
  const std::int64_t count = std::clamp<std::int64_t>(x.cols - column, 0, kLanes);
  const auto mask = static_cast<__mmask16>((1u << count) - 1);
  const auto load = [&](std::int64_t r) THIMBLE_BF16_PAIRS {
    return r < x.rows ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x.row<bf16>(r) + column))
                      : _mm512_setzero_si512();
  };
  return _mm512_or_si512(load(row), _mm512_slli_epi32(load(row + 1), 16));
}

// Calls store(k, column, words) for the row pairs k in [begin, end) of a block that starts at
// `row`. Rows are read sequentially, which is fastest from memory.
template <class Store>
THIMBLE_BF16_PAIRS inline void for_words(const Tensor& x, std::int64_t row, std::int64_t begin,
                                         std::int64_t end, std::int64_t columns, Store store) {
  constexpr std::int64_t kAhead = 4;  // rows to prefetch ahead
  for (std::int64_t k = begin; k < end; ++k) {
    const std::int64_t even = row + 2 * k;
    std::int64_t n = 0;
    if (even + 1 < x.rows)
      for (; n + 2 * kLanes <= x.cols; n += 2 * kLanes) {
        const bf16 *upper = x.row<bf16>(even) + n, *lower = x.row<bf16>(even + 1) + n;
        _mm_prefetch(upper + kAhead * x.stride, _MM_HINT_T0);
        _mm_prefetch(lower + kAhead * x.stride, _MM_HINT_T0);
        const pairs::Words words = pairs::interleave(_mm512_loadu_si512(upper), _mm512_loadu_si512(lower));
        store(k, n, words.low);
        store(k, n + kLanes, words.high);
      }
    for (; n < columns; n += kLanes) store(k, n, words_at_edge(x, even, n));
  }
}

THIMBLE_BF16_PAIRS void pack_left(const Tensor& a, std::int64_t row, std::int64_t begin, std::int64_t end,
                                  const Panels& packed) {
  const std::int64_t columns = panels(a.cols, kLeft) * kLeft;
  for_words(a, row, begin, end, columns,
            [&](std::int64_t k, std::int64_t m, __m512i words) THIMBLE_BF16_PAIRS {
              std::uint32_t* target = packed.left + m / kLeft * packed.left_pitch + k * kLeft;
              _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), _mm512_castsi512_si256(words));
              if (m + kLeft < columns)
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + packed.left_pitch),
                                    _mm512_extracti64x4_epi64(words, 1));
            });
}

THIMBLE_BF16_PAIRS void pack_right(const Tensor& b, std::int64_t row, std::int64_t begin, std::int64_t end,
                                   const Panels& packed) {
  const std::int64_t columns = panels(b.cols, kRight) * kRight;
  for_words(
      b, row, begin, end, columns, [&](std::int64_t k, std::int64_t n, __m512i words) THIMBLE_BF16_PAIRS {
        _mm512_storeu_si512(packed.right + n / kRight * packed.right_pitch + k * kRight + n % kRight, words);
      });
}

// The product of one panel of each: kLeft x kVectors sums, clipped to `rows` and `cols`.
template <int kVectors>
THIMBLE_BF16_PAIRS void add_products(const std::uint32_t* left, const std::uint32_t* right,
                                     std::int64_t depth, float* c, std::int64_t c_row, std::int64_t rows,
                                     std::int64_t cols) {
  __m512 sum[kLeft][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kLeft; ++r)
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_ps();
  // Prefetch the part of c that is added to, while the sums are computed.
  for (std::int64_t r = 0; r < std::min(rows, kLeft); ++r)
    for (int v = 0; v < kVectors; ++v) _mm_prefetch(c + r * c_row + v * kLanes, _MM_HINT_T0);
  for (std::int64_t k = 0; k < depth; ++k) {
    __m512i of_b[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) of_b[v] = _mm512_loadu_si512(right + k * kRight + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kLeft; ++r) {
      const __m512i of_a = _mm512_set1_epi32(static_cast<int>(left[k * kLeft + r]));
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)of_a, (__m512bh)of_b[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kLeft; ++r) {
    if (r >= rows) break;
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t count = std::clamp<std::int64_t>(cols - v * kLanes, 0, kLanes);
      const auto mask = static_cast<__mmask16>((1u << count) - 1);
      float* target = c + r * c_row + v * kLanes;
      _mm512_mask_storeu_ps(target, mask, _mm512_add_ps(_mm512_maskz_loadu_ps(mask, target), sum[r][v]));
    }
  }
}

}  // namespace

void outer_sum(const Tensor& a, const Tensor& b, const Tensor& c, std::byte* memory) {
  constexpr std::int64_t kPanelsPerTask = 16;  // panels of a per task, with one panel of b
  ScratchCutter cutter(memory);
  const Panels packed(cutter, a.rows, a.cols, b.cols);
  const std::int64_t left_panels = panels(a.cols, kLeft), right_panels = panels(b.cols, kRight);
  const std::int64_t groups = panels(left_panels, kPanelsPerTask);
  for (std::int64_t row = 0; row < a.rows; row += kDepth) {
    const std::int64_t depth = (std::min(kDepth, a.rows - row) + 1) / 2;
    parallel_for(depth, kPairsPerTask, [&](std::int64_t begin, std::int64_t end) {
      pack_left(a, row, begin, end, packed);
      pack_right(b, row, begin, end, packed);
    });
    parallel_tasks(right_panels * groups, [&](std::int64_t task) {
      const std::int64_t n = task / groups, first = task % groups * kPanelsPerTask;
      const std::int64_t cols = b.cols - n * kRight;
      const auto add = cols > 2 * kLanes ? add_products<3>
                       : cols > kLanes   ? add_products<2>
                                         : add_products<1>;
      for (std::int64_t m = first; m < std::min(first + kPanelsPerTask, left_panels); ++m)
        add(packed.left + m * packed.left_pitch, packed.right + n * packed.right_pitch, depth,
            c.row<float>(m * kLeft) + n * kRight, c.stride, a.cols - m * kLeft, cols);
    });
  }
}

#else

void outer_sum(const Tensor&, const Tensor&, const Tensor&, std::byte*) {
  fail("[gemm] was not built for AVX-512 BF16");
}

#endif

}  // namespace thimble::cpu
