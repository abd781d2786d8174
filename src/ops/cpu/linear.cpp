// linear: training and prompts multiply with Gemm; inference uses the row kernels (linear.h), which
// read stored matrices directly.
#include "ops/cpu/linear.h"

#include <optional>

#include "ops/cpu/block_products.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/row_blocks.h"

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

template <class T>
HWY_INLINE void unpack_values(const T* from, const float* scales, bool one_scale, Row to,
                              std::int64_t count) {
  for_lanes(count, [&](auto at) HWY_ATTR {
    const V32 value = at.load(from);
    at.store(scales ? hn::Mul(value, all(scales[one_scale ? 0 : at.i / kScaledColumns])) : value, to);
  });
}

void unpack_any_row(const Tensor& w, const Tensor& scales, std::int64_t row, const Tensor& to,
                    std::int64_t to_row) {
  const float* scale = scales ? scales.row<float>(row) : nullptr;
  const auto unpack = [&](const auto* from) HWY_ATTR {
    unpack_values(from, scale, one_scale_per_row(scales), Row(to, to_row), w.cols);
  };
  switch (w.dtype) {
    case DType::i8:
      return unpack(w.row<std::int8_t>(row));
    case DType::f16:
      return unpack(w.row<f16>(row));
    case DType::bf16:
      return unpack(w.row<bf16>(row));
    default:
      return unpack(w.row<float>(row));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(add_rows);
HWY_EXPORT(unpack_any_row);

namespace {

struct UnpackedMatrix {
  Arena memory;
};

}  // namespace

void unpack_row(const Tensor& w, const Tensor& scales, std::int64_t row, const Tensor& to,
                std::int64_t to_row) {
  if (w.dtype == DType::blocks) return unpack_block_row(w, row, to, to_row);
  HWY_DYNAMIC_DISPATCH(unpack_any_row)(w, scales, row, to, to_row);
}

Tensor unpacked_rows(const Context& context, const Tensor& w, const Tensor& scales, std::int64_t first,
                     std::int64_t count, DType dtype) {
  if (w.dtype == dtype) return w.row_range(first, count);
  Arena& memory = context.state<UnpackedMatrix>().memory;
  const std::int64_t bytes = count * w.cols * dtype_bytes(dtype);
  if (memory.bytes() < bytes) memory = Arena(bytes, "an unpacked matrix", "lower dim or vocab_size");
  const Tensor plain{memory.at(0), count, w.cols, w.cols, dtype, Device::cpu};
  parallel_for(count, rows_per_task(w.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) unpack_row(w, scales, first + row, plain, row);
  });
  return plain;
}

namespace {

constexpr std::int64_t kOutputsPerTask = 64;
constexpr std::int64_t kTileOutputs = 16;  // outputs converted together
// Converting the weights again for every four rows adds a third to the time of their products.
// Converting a tile once costs as much as that does for 60 rows.
constexpr std::int64_t kRowsWorthATile = 64;
// With 8 lanes, one scale per 32 columns adds another third for every three rows.
constexpr std::int64_t kRowsWorthATileOfBlocks = 12;
// Unpacking a row of blocks costs as much as multiplying it by a few rows.
constexpr std::int64_t kRowsWorthATileOfFile = 3;

static_assert(kUnpackedRows <= kTileOutputs);

struct RowsMath {
  LinearRowsKernel kernel;
  DType multiplied;  // dtype of the weights in the product
  std::int64_t rows_worth_a_tile = kRowsWorthATile;
  std::int64_t outputs_per_task = kOutputsPerTask;
};

RowsMath rows_math(const Linear& op) {
  const DType x = op.x.dtype, w = op.w.dtype;
  if (w == DType::blocks) {
    if (x == DType::bf16 && supports_linear_rows_bf16())
      return {linear_rows_bf16, DType::bf16, kRowsWorthATileOfFile};
    const LinearRowsKernel kernel = supports_linear_rows_avx512() ? linear_rows_avx512
                                    : supports_linear_rows_avx2() ? linear_rows_avx2
                                                                  : linear_rows_portable;
    return {kernel, DType::f32, kRowsWorthATileOfFile};
  }
  if (x == DType::bf16 && (w == DType::bf16 || w == DType::i8) && supports_linear_rows_bf16())
    return {linear_rows_bf16, DType::bf16};
  if (supports_linear_rows_avx512()) return {linear_rows_avx512, DType::f32};
  const bool blocks = op.scales && !one_scale_per_row(op.scales);
  if (w == DType::i8 && x == DType::f32 && !blocks && supports_linear_rows_wasm())
    return {linear_rows_wasm, DType::i8, kRowsWorthATile, op.w.rows};  // each task splits x
  if (supports_linear_rows_avx2())
    return {linear_rows_avx2, DType::f32, blocks ? kRowsWorthATileOfBlocks : kRowsWorthATile};
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
          .y = op.y.columns(begin, count),
          .first = begin};
}

// The same for w in blocks. Floats that the kernel can read are read in place; with bf16 products
// that is bf16 only, because the kernel does not round.
LinearRows outputs_of_blocks(const Linear& op, const RowsMath& math, std::int64_t begin, std::int64_t end) {
  LinearRows rows = outputs_of(op, begin, end);
  const Tensor plain = plain_rows(op.w, begin, end - begin);
  if (plain && (math.multiplied == DType::f32 || plain.dtype == DType::bf16)) rows.w = plain;
  return rows;
}

// Multiplies a tile of converted weights. Per-row scales are left to the kernel, which applies them
// to the sum; so are block scales if bf16 cannot represent the scaled weights. The bits are the
// same either way.
void multiply_tile(const LinearRows& rows, const RowsMath& math, std::byte* memory) {
  LinearRows part = rows;
  const bool scaled = rows.scales && !one_scale_per_row(rows.scales) && math.multiplied == DType::f32;
  part.w = {memory, rows.w.rows, rows.w.cols, rows.w.cols, math.multiplied, Device::cpu};
  const std::int64_t first = rows.w.dtype == DType::blocks ? rows.first : 0;
  for (std::int64_t o = 0; o < rows.w.rows; ++o)
    unpack_row(rows.w, scaled ? rows.scales : Tensor{}, first + o, part.w, o);
  if (scaled) part.scales = {};
  math.kernel(part);
}

// Prefetches weights while other rows are multiplied.
void fetch_rows(const Tensor& w, std::int64_t begin, std::int64_t end) {
  if (end > w.rows) return;
  const Tensor rows = w.row_range(begin, end - begin);
  for (const std::byte* at = rows.begin_bytes(); at < rows.end_bytes(); at += kAlignment)
    __builtin_prefetch(at);
}

// Scratch of a product with blocks: memory of each thread, then x in integers.
std::int64_t bytes_of_thread(std::int64_t cols) {
  return std::max(tile_bytes(cols, DType::f32), block_product_bytes(cols));
}

IntegerRows rows_in_integers(const Linear& op, const BlockProductKernel& kernel, const Tensor& scratch) {
  std::byte* const memory =
      static_cast<std::byte*>(scratch.data) + ThreadScratch::bytes(bytes_of_thread(op.w.cols));
  const IntegerRows rows(memory, op.x.rows, op.w.cols,
                         op.x.rows >= kRowsWorthIntegerTiles ? kernel.together : 1);
  const std::int64_t blocks = (op.x.rows + rows.together - 1) / rows.together;
  parallel_for(blocks, rows_per_task(op.w.cols * rows.together), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) round_rows(op.x, block * rows.together, rows);
  });
  return rows;
}

// Types of integers are multiplied in integers, floats like other stored matrices.
void invariant_linear_of_blocks(const Linear& op, const RowsMath& math, const Tensor& scratch) {
  const BlockMatrix& matrix = block_matrix(op.w);
  const ThreadScratch memory(scratch, bytes_of_thread(op.w.cols), "linear");
  const BlockProductKernel kernel = block_product_kernel();
  std::optional<IntegerRows> x;
  if (has_integers(matrix)) x = rows_in_integers(op, kernel, scratch);
  const bool tiles = op.x.rows >= math.rows_worth_a_tile;
  parallel_for(op.w.rows, tiles ? kTileOutputs : kOutputsPerTask, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      std::int64_t row = begin;
      const BlockRows& part = matrix.part_of(row);
      const std::int64_t count = std::min(end - begin, part.rows - row);
      LinearRows rows = outputs_of_blocks(op, math, begin, begin + count);
      begin += count;
      if (is_in_integers(part.type)) {
        kernel.multiply({.x = &*x,
                         .w = &part,
                         .first = row,
                         .count = count,
                         .bias = rows.bias,
                         .y = rows.y,
                         .memory = memory.mine()});
      } else if (tiles && rows.w.dtype != math.multiplied) {
        multiply_tile(rows, math, memory.mine());
      } else {
        rows.unpacked = memory.mine();
        math.kernel(rows);
      }
    }
  });
}

void invariant_linear(const Linear& op, const Tensor& scratch) {
  const RowsMath math = rows_math(op);
  if (op.w.dtype == DType::blocks) return invariant_linear_of_blocks(op, math, scratch);
  if (op.w.dtype == math.multiplied || op.x.rows < math.rows_worth_a_tile) {
    parallel_for(op.w.rows, math.outputs_per_task,
                 [&](std::int64_t begin, std::int64_t end) { math.kernel(outputs_of(op, begin, end)); });
    return;
  }
  const ThreadScratch tiles(scratch, tile_bytes(op.w.cols, math.multiplied), "linear");
  const std::int64_t ahead = kTileOutputs * max_threads();  // about the next task of this thread
  parallel_for(op.w.rows, kTileOutputs, [&](std::int64_t begin, std::int64_t end) {
    fetch_rows(op.w, begin + ahead, end + ahead);
    multiply_tile(outputs_of(op, begin, end), math, tiles.mine());
  });
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
  if (op.dx) gemm.run({op.dy}, {unpacked(context, op.w, op.scales, op.dy.dtype)}, op.dx, op.add_dx);
  if (op.dw) gemm.run(transposed(op.dy), {op.x}, op.dw, true);
  if (!op.db) return;
  sum_over_rows(
      op.dy.rows, op.dy.cols, call.scratch,
      [&](std::int64_t begin, std::int64_t end, float* sums) {
        HWY_DYNAMIC_DISPATCH(add_rows)(op.dy, begin, end, sums);
      },
      [&](const float* total) { add_total(total, op.dy.cols, op.db.row<float>(0), op.dy.cols); });
}

std::int64_t linear_scratch_bytes(std::span<const Shape> in, const Attributes& attributes) {
  const Shape &x = in[0], &w = in[1];
  const bool invariant = attributes.as<LinearAttributes>().invariant;
  if (invariant && w.dtype == DType::blocks)
    return ThreadScratch::bytes(bytes_of_thread(w.cols)) + IntegerRows::bytes(x.rows, w.cols);
  const bool tiles = x.rows >= kRowsWorthATileOfBlocks;
  const std::int64_t tile =
      invariant && w.dtype != DType::f32 && tiles ? ThreadScratch::bytes(tile_bytes(w.cols, DType::f32)) : 0;
  return std::max(tile, row_sum_bytes(x.rows, w.rows));
}

}  // namespace

constinit const Kernels kLinear = {.forward = linear_forward,
                                   .backward = linear_backward,
                                   .rows = dtypes({DType::f32, DType::bf16}),
                                   .stored = kStoredDTypes,
                                   .scratch_bytes = linear_scratch_bytes};

}  // namespace thimble::cpu
#endif
