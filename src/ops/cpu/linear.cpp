#include "ops/linear.h"

#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/linear_rows.h"
#include "ops/cpu/row_blocks.h"
#include "ops/cpu/stored.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/linear.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

void add_rows(const Tensor& dy, std::int64_t begin, std::int64_t end, float* sums) {
  for (std::int64_t n = begin; n < end; ++n) {
    const Row row(dy, n);
    for_lanes(dy.cols, [&](auto at) HWY_ATTR { at.store(hn::Add(at.load(sums), at.load(row)), sums); });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(add_rows);

namespace {

constexpr std::int64_t kOutputsPerTask = 64;
constexpr std::int64_t kTileOutputs = 16;  // converted at a time
// Converting for every four rows costs a third of the products; converting a tile as much as 60 rows of that.
constexpr std::int64_t kRowsWorthATile = 64;
// In eight lanes a scale for every 32 columns costs every three rows as much as a third of their products besides.
constexpr std::int64_t kRowsWorthATileOfBlocks = 12;

struct RowsMath {
  LinearRowsKernel kernel;
  DType multiplied;  // what weights are in when they are multiplied
  std::int64_t rows_worth_a_tile = kRowsWorthATile;
};

RowsMath rows_math(const Linear& op) {
  const DType x = op.x.dtype, w = op.w.dtype;
  if (x == DType::bf16 && (w == DType::bf16 || w == DType::i8) && multiplies_rows_in_pairs())
    return {linear_rows_in_pairs, DType::bf16};
  if (multiplies_sixteen_lanes()) return {linear_rows_in_lanes, DType::f32};
  const bool blocks = op.scales && !one_scale_a_row(op.scales);
  if (multiplies_eight_lanes())
    return {linear_rows_in_eight_lanes, DType::f32, blocks ? kRowsWorthATileOfBlocks : kRowsWorthATile};
  return {linear_rows_portable, DType::f32};
}

std::int64_t tile_bytes(std::int64_t cols, DType multiplied) {
  return kTileOutputs * cols * dtype_bytes(multiplied);
}

// Outputs [begin, end) of all rows.
LinearRows outputs_of(const Linear& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t count = end - begin;
  return {.x = op.x,
          .w = op.w.row_range(begin, count),
          .scales = op.scales ? op.scales.row_range(begin, count) : Tensor{},
          .bias = op.b ? op.b.columns(begin, count) : Tensor{},
          .y = op.y.columns(begin, count)};
}

// The same from a tile of converted weights. A scale for a whole row is left to the kernel, which applies it to the
// sum; so are those of blocks where bf16 could not hold the product. The sums have the same bits either way.
void multiply_tile(const LinearRows& rows, const RowsMath& math, std::byte* memory) {
  LinearRows part = rows;
  const bool scaled = rows.scales && !one_scale_a_row(rows.scales) && math.multiplied == DType::f32;
  part.w = {memory, rows.w.rows, rows.w.cols, rows.w.cols, math.multiplied, Device::cpu};
  for (std::int64_t o = 0; o < rows.w.rows; ++o)
    unpack_row(rows.w, scaled ? rows.scales : Tensor{}, o, part.w, o);
  if (scaled) part.scales = {};
  math.kernel(part);
}

// Into the cache, while other rows are multiplied.
void fetch_rows(const Tensor& w, std::int64_t begin, std::int64_t end) {
  if (end > w.rows) return;
  const Tensor rows = w.row_range(begin, end - begin);
  for (const std::byte* at = rows.begin_bytes(); at < rows.end_bytes(); at += kAlignment)
    __builtin_prefetch(at);
}

void invariant_linear(const Linear& op, const Tensor& scratch) {
  const RowsMath math = rows_math(op);
  if (op.w.dtype == math.multiplied || op.x.rows < math.rows_worth_a_tile) {
    parallel_for(op.w.rows, kOutputsPerTask,
                 [&](std::int64_t begin, std::int64_t end) { math.kernel(outputs_of(op, begin, end)); });
    return;
  }
  const ThreadScratch tiles(scratch, tile_bytes(op.w.cols, math.multiplied), "linear");
  const std::int64_t ahead = kTileOutputs * max_threads();  // about what this thread takes next
  parallel_for(op.w.rows, kTileOutputs, [&](std::int64_t begin, std::int64_t end) {
    fetch_rows(op.w, begin + ahead, end + ahead);
    multiply_tile(outputs_of(op, begin, end), math, tiles.mine());
  });
}

}  // namespace

std::int64_t linear_scratch_bytes(const Shape& x, const Shape& w, const LinearAttributes& at) {
  const std::int64_t tile = at.invariant && w.dtype != DType::f32 && x.rows >= kRowsWorthATileOfBlocks
                                ? ThreadScratch::bytes(tile_bytes(w.cols, DType::f32))
                                : 0;
  return std::max(tile, row_sum_bytes(x.rows, w.rows));
}

void linear_forward(const Context& context, const OpCall& call) {
  const Linear op(call);
  if (op.at.invariant) return invariant_linear(op, call.scratch);
  const Tensor w = unpacked(context, op.w, op.scales, op.x.dtype);
  context.state<Gemm>().run({op.x}, transposed(w), op.y, false, op.b);
}

void linear_backward(const Context& context, const OpCall& call) {
  const Linear op(call);
  Gemm& gemm = context.state<Gemm>();
  if (op.dx) gemm.run({op.dy}, {op.w}, op.dx, op.add_dx);
  if (op.dw) gemm.run(transposed(op.dy), {op.x}, op.dw, true);
  if (!op.db) return;
  sum_over_rows(
      op.dy.rows, op.dy.cols, call.scratch,
      [&](std::int64_t begin, std::int64_t end, float* sums) {
        HWY_DYNAMIC_DISPATCH(add_rows)(op.dy, begin, end, sums);
      },
      [&](const float* total) { add_total(total, op.dy.cols, op.db.row<float>(0), op.dy.cols); });
}

}  // namespace thimble::cpu
#endif
