// low_rank: forward adds R products to every element in one pass over x; backward multiplies with
// Gemm, because its sums run over rows or over the outputs of the linear.
#include "ops/low_rank.h"

#include <algorithm>

#include "ops/cpu/gemm.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/low_rank.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

#ifndef THIMBLE_OPS_CPU_LOW_RANK_ONCE
#define THIMBLE_OPS_CPU_LOW_RANK_ONCE
namespace thimble::cpu {

// Outputs of one task. Their rows of w are transposed first, so that a vector holds neighbouring
// outputs and sums need no reduction across lanes.
constexpr std::int64_t kOutputs = 64;

// Columns [column, column + count) of x and y, h for these columns, and w^T [R, kOutputs].
struct LowRankBlock {
  Tensor x, y;
  Tensor h;  // [N, R] f32, scaled
  std::int64_t column, count;
  float* w;
};

}  // namespace thimble::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

void add_block(const LowRankBlock& b) {
  for (std::int64_t n = 0; n < b.x.rows; ++n) {
    const float* h = b.h.row<float>(n);
    with_rows({Row(b.x, n) + b.column, Row(b.y, n) + b.column}, [&](auto x, auto y) HWY_ATTR {
      for_lanes(b.count, [&](auto at) HWY_ATTR {
        V32 sum = at.load(x);
        for (std::int64_t r = 0; r < b.h.cols; ++r)
          sum = hn::MulAdd(all(h[r]), at.load(b.w + r * kOutputs), sum);
        at.store(sum, y);
      });
    });
  }
}

// to = scale from, or to += scale from.
void scale_rows(const Tensor& from, float scale, const Tensor& to, bool add) {
  for (std::int64_t n = 0; n < from.rows; ++n)
    with_rows({Row(from, n), Row(to, n)}, [&](auto f, auto t) HWY_ATTR {
      for_lanes(from.cols, [&](auto at) HWY_ATTR { put(at, hn::Mul(all(scale), at.load(f)), t, add); });
    });
}

void transpose_rows(const Tensor& w, std::int64_t first, std::int64_t count, float* to) {
  for (std::int64_t o = 0; o < count; ++o) {
    const Row row(w, first + o);
    for (std::int64_t r = 0; r < w.cols; ++r)
      to[r * kOutputs + o] = row.is_f32() ? row.floats()[r] : to_f32(row.bf16s()[r]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(add_block);
HWY_EXPORT(scale_rows);
HWY_EXPORT(transpose_rows);

namespace {

// Memory of a call: h times scale, then the transposed weights of each thread or a part of dh.
struct LowRankScratch {
  LowRankScratch(const LowRank& op, const Tensor& scratch)
      : memory(static_cast<std::byte*>(scratch.data)), behind(memory + scaled_bytes(op.h.rows, op.h.cols)) {}

  static std::int64_t scaled_bytes(std::int64_t rows, std::int64_t cols) {
    return align_up(rows * cols * static_cast<std::int64_t>(sizeof(float)), kAlignment);
  }

  std::byte *memory, *behind;
};

std::int64_t transposed_bytes(std::int64_t rank) {
  return rank * kOutputs * static_cast<std::int64_t>(sizeof(float));
}

void scale_all(const Tensor& from, float scale, const Tensor& to, bool add) {
  parallel_for(from.rows, rows_per_task(from.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(scale_rows)
    (from.row_range(begin, end - begin), scale, to.row_range(begin, end - begin), add);
  });
}

Tensor scaled_h(const LowRank& op, std::byte* memory, DType dtype) {
  const Tensor scaled{memory, op.h.rows, op.h.cols, op.h.cols, dtype, Device::cpu};
  scale_all(op.h, op.at.scale, scaled, false);
  return scaled;
}

// The columns of parts without an adapter.
void copy_other_parts(const LowRank& op) {
  std::int64_t column = 0;
  for (std::size_t p = 0; p < op.at.widths.size(); column += op.at.widths[p++])
    if ((op.at.adapted >> p & 1u) == 0 && op.at.widths[p] > 0)
      scale_all(op.x.columns(column, op.at.widths[p]), 1, op.y.columns(column, op.at.widths[p]), false);
}

void low_rank_forward(const Context&, const OpCall& call) {
  const LowRank op(call);
  const LowRankScratch scratch(op, call.scratch);
  const ThreadScratch weights(scratch.behind, transposed_bytes(op.at.rank));
  const Tensor h = scaled_h(op, scratch.memory, DType::f32);
  copy_other_parts(op);
  op.each_part([&](std::int64_t column, std::int64_t count, std::int64_t h_column, std::int64_t row) {
    parallel_for(count, kOutputs, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t first = begin; first < end; first += kOutputs) {
        const std::int64_t outputs = std::min(kOutputs, end - first);
        auto* const w = reinterpret_cast<float*>(weights.mine());
        HWY_DYNAMIC_DISPATCH(transpose_rows)(op.w, row + first, outputs, w);
        HWY_DYNAMIC_DISPATCH(add_block)
        ({op.x, op.y, h.columns(h_column, op.at.rank), column + first, outputs, w});
      }
    });
  });
}

void low_rank_backward(const Context& context, const OpCall& call) {
  const LowRank op(call);
  const LowRankScratch scratch(op, call.scratch);
  Gemm& gemm = context.state<Gemm>();
  // Where nothing else adds to dx, it has the memory of dy.
  if (op.dx && op.dx.data != op.dy.data) scale_all(op.dy, 1, op.dx, op.add_dx);
  const Tensor h = op.dw ? scaled_h(op, scratch.memory, op.dy.dtype) : Tensor{};
  op.each_part([&](std::int64_t column, std::int64_t count, std::int64_t h_column, std::int64_t row) {
    const Tensor dy = op.dy.columns(column, count);
    if (op.dh) {
      const Tensor dh = make_tensor(reinterpret_cast<float*>(scratch.behind), op.dy.rows, op.at.rank);
      gemm.run({dy}, {op.w.row_range(row, count)}, dh, false);
      scale_all(dh, op.at.scale, op.dh.columns(h_column, op.at.rank), op.add_dh);
    }
    if (op.dw) gemm.run(transposed(dy), {h.columns(h_column, op.at.rank)}, op.dw.row_range(row, count), true);
  });
}

std::int64_t low_rank_scratch_bytes(std::span<const Shape> in, const Attributes& attributes) {
  const std::int64_t rank = attributes.as<LowRankAttributes>().rank;
  return LowRankScratch::scaled_bytes(in[1].rows, in[1].cols) +
         std::max(ThreadScratch::bytes(transposed_bytes(rank)),
                  LowRankScratch::scaled_bytes(in[1].rows, rank));
}

}  // namespace

constinit const Kernels kLowRank = {.forward = low_rank_forward,
                                    .backward = low_rank_backward,
                                    .rows = dtypes({DType::f32, DType::bf16}),
                                    .scratch_bytes = low_rank_scratch_bytes};

}  // namespace thimble::cpu
#endif
