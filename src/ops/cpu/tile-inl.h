// Products of small tiles that lie in cache: what attention is made of.

#if defined(THIMBLE_OPS_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THIMBLE_OPS_CPU_TILE_INL_H_
#undef THIMBLE_OPS_CPU_TILE_INL_H_
#else
#define THIMBLE_OPS_CPU_TILE_INL_H_
#endif

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// The left factor: a(m, k) = data[m * row + k * column]; a transposed matrix is one with the steps exchanged.
struct Left {
  const float* data;
  std::int64_t row, column;
};

// R rows of the result, W vectors wide. Unrolled by hand: at -O2 the sums would stay in memory.
template <int R, int W>
HWY_INLINE void tile_strip(Left a, const float* b, std::int64_t b_row, std::int64_t depth, float* c,
                           std::int64_t c_row, bool add) {
  const F32 d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  V32 sum[R][W];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w) sum[r][w] = add ? hn::LoadU(d, c + r * c_row + w * lanes) : hn::Zero(d);
  for (std::int64_t k = 0; k < depth; ++k) {
    V32 right[W];
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w) right[w] = hn::LoadU(d, b + k * b_row + w * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V32 left = hn::Set(d, a.data[r * a.row + k * a.column]);
#pragma GCC unroll 8
      for (int w = 0; w < W; ++w) sum[r][w] = hn::MulAdd(left, right[w], sum[r][w]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w) hn::StoreU(sum[r][w], d, c + r * c_row + w * lanes);
}

template <int R>
HWY_INLINE void tile_rows(Left a, const float* b, std::int64_t b_row, std::int64_t depth, std::int64_t width,
                          float* c, std::int64_t c_row, bool add) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(F32()));
  std::int64_t n = 0;
  for (; n + 2 * lanes <= width; n += 2 * lanes) tile_strip<R, 2>(a, b + n, b_row, depth, c + n, c_row, add);
  for (; n < width; n += lanes) tile_strip<R, 1>(a, b + n, b_row, depth, c + n, c_row, add);
}

// c [rows, width] = a [rows, depth] b [depth, width], or += . Rows of b and c are padded to whole vectors
// (kTilePad): the columns between width and the padding are computed too and mean nothing.
HWY_INLINE void tile_product(std::int64_t rows, std::int64_t width, std::int64_t depth, Left a,
                             const float* b, std::int64_t b_row, float* c, std::int64_t c_row, bool add) {
  // 6 x 2 sums, 2 right vectors and 1 left fill the 16 registers of AVX2.
  std::int64_t m = 0;
  const auto from = [&](std::int64_t row) { return Left{a.data + row * a.row, a.row, a.column}; };
  for (; m + 6 <= rows; m += 6) tile_rows<6>(from(m), b, b_row, depth, width, c + m * c_row, c_row, add);
  for (; m + 2 <= rows; m += 2) tile_rows<2>(from(m), b, b_row, depth, width, c + m * c_row, c_row, add);
  for (; m < rows; ++m) tile_rows<1>(from(m), b, b_row, depth, width, c + m * c_row, c_row, add);
}

// A part of a tensor, f32 or bf16, that is read into a tile or written from one.
struct Part {
  const Tensor& tensor;
  std::int64_t row, column, rows, cols;

  Row at(std::int64_t r) const { return Row(tensor, row + r) + column; }
};

// Rows padded with zeros.
HWY_INLINE void copy_tile(const Part& in, float* out, std::int64_t out_row) {
  for (std::int64_t r = 0; r < in.rows; ++r) {
    for_lanes(in.cols, [&](auto at) HWY_ATTR { at.store(at.load(in.at(r)), out + r * out_row); });
    for (std::int64_t c = in.cols; c < out_row; ++c) out[r * out_row + c] = 0;
  }
}

// out[c][r] = in[r][c]; the columns of out from in.rows on become zeros.
HWY_INLINE void transpose_tile(const Part& in, float* out, std::int64_t out_row) {
  const auto read = [&](auto element) {
    for (std::int64_t r = 0; r < in.rows; ++r)
      for (std::int64_t c = 0; c < in.cols; ++c) out[c * out_row + r] = element(in.at(r), c);
  };
  in.at(0).is_f32() ? read([](Row row, std::int64_t c) { return row.floats()[c]; })
                    : read([](Row row, std::int64_t c) { return to_f32(row.bf16s()[c]); });
  for (std::int64_t c = 0; c < in.cols; ++c)
    for (std::int64_t r = in.rows; r < out_row; ++r) out[c * out_row + r] = 0;
}

// The tile stored, or added.
HWY_INLINE void put_tile(const float* tile, std::int64_t tile_row, const Part& out, bool add) {
  for (std::int64_t r = 0; r < out.rows; ++r)
    for_lanes(out.cols, [&](auto at) HWY_ATTR { put(at, at.load(tile + r * tile_row), out.at(r), add); });
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#endif
