// embedding, gather and smear: ops that select rows by index. Gradients are added in a fixed order.
#include "ops/embedding.h"

#include <cstring>

#include "ops/cpu/linear.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/embedding.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// Not memcpy: it copies rows of this size backwards, which is three times slower from memory.
HWY_INLINE void copy_bytes(const std::uint8_t* from, std::uint8_t* to, std::int64_t count) {
  const hn::ScalableTag<std::uint8_t> bytes;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(bytes));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(hn::LoadU(bytes, from + i), bytes, to + i);
  std::memcpy(to + i, from + i, static_cast<std::size_t>(count - i));
}

void copy_rows(const Tensor& from, const Tensor& row, const Tensor& to, std::int64_t begin,
               std::int64_t end) {
  const std::int64_t item = dtype_bytes(from.dtype);
  const auto* source = static_cast<const std::uint8_t*>(from.data);
  auto* target = static_cast<std::uint8_t*>(to.data);
  for (std::int64_t n = begin; n < end; ++n)
    copy_bytes(source + *row.row<std::int32_t>(n) * from.stride * item, target + n * to.stride * item,
               from.cols * item);
}

HWY_INLINE void fetch_row(const Tensor& tensor, std::int64_t row) {
  const Tensor one = tensor.row_range(row, 1);
  for (const std::byte* at = one.begin_bytes(); at < one.end_bytes(); at += kAlignment)
    __builtin_prefetch(at);
}

// Entries [begin, end) of the sorted order. Rows are not sequential, so prefetch them explicitly.
void add_embedding_rows(const Embedding& op, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kFetchAhead = 2;
  for (std::int64_t i = begin; i < end; ++i) {
    if (i + kFetchAhead < end) fetch_row(op.dy, *op.order.row<std::int32_t>(i + kFetchAhead));
    const std::int32_t n = *op.order.row<std::int32_t>(i);
    float* dtable = op.dtable.row<float>(*op.index.row<std::int32_t>(n));
    with_rows({Row(op.dy, n)}, [&](auto dy) HWY_ATTR {
      for_lanes(op.dy.cols, [&](auto at) HWY_ATTR { put(at, at.load(dy), dtable, true); });
    });
  }
}

void scatter_rows(const Gather& op, std::int64_t begin, std::int64_t end) {
  for (std::int64_t m = begin; m < end; ++m) {
    const Row dy(op.dy, m), dx(op.dx, *op.row.row<std::int32_t>(m));
    for_lanes(op.dy.cols, [&](auto at) HWY_ATTR { put(at, at.load(dy), dx, op.add_dx); });
  }
}

void fill_gate(const Smear& op, float* g) {
  const float* gate = op.gate.row<float>(0);
  for_lanes(op.gate.cols, [&](auto at) HWY_ATTR { at.store(sigmoid_lanes(at.load(gate)), g); });
}

void smear_rows(const Smear& op, const float* g, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const std::int32_t before = *op.previous.row<std::int32_t>(n);
    with_rows({Row(op.x, n), before < 0 ? Row() : Row(op.x, before), Row(op.y, n)},
              [&](auto x, auto previous, auto y) HWY_ATTR {
                for_lanes(op.y.cols, [&](auto at) HWY_ATTR {
                  const V32 kept = hn::Mul(hn::Sub(all(1), at.load(g)), at.load(x));
                  at.store(previous ? hn::MulAdd(at.load(g), at.load(previous), kept) : kept, y);
                });
              });
  }
}

void smear_backward_rows(const Smear& op, const float* g, std::int64_t begin, std::int64_t end,
                         float* dgate) {
  const std::int64_t N = op.dy.rows;
  for (std::int64_t n = begin; n < end; ++n) {
    const std::int32_t before = *op.previous.row<std::int32_t>(n);
    const bool followed = n + 1 < N && *op.previous.row<std::int32_t>(n + 1) == n;
    with_rows({Row(op.x, n), before < 0 ? Row() : Row(op.x, before), Row(op.dy, n),
               followed ? Row(op.dy, n + 1) : Row(), Row(op.dx, n)},
              [&](auto x, auto previous, auto dy, auto next_dy, auto dx) HWY_ATTR {
                for_lanes(op.dy.cols, [&](auto at) HWY_ATTR {
                  const V32 share = at.load(g), one_less = hn::Sub(all(1), share), gradient = at.load(dy);
                  if (dgate) {
                    const V32 difference =
                        hn::Sub(previous ? at.load(previous) : hn::Zero(F32()), at.load(x));
                    const V32 slope = hn::Mul(hn::Mul(share, one_less), hn::Mul(gradient, difference));
                    at.store(hn::Add(at.load(dgate), slope), dgate);
                  }
                  if (dx) {
                    const V32 own = hn::Mul(one_less, gradient);
                    put(at, next_dy ? hn::MulAdd(share, at.load(next_dy), own) : own, dx, op.add_dx);
                  }
                });
              });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(copy_rows);
HWY_EXPORT(add_embedding_rows);
HWY_EXPORT(scatter_rows);
HWY_EXPORT(fill_gate);
HWY_EXPORT(smear_rows);
HWY_EXPORT(smear_backward_rows);

namespace {

// to[n] = from[row[n]], both of the same dtype; row is i32.
void gather_rows(const Tensor& from, const Tensor& row, const Tensor& to) {
  parallel_for(to.rows, rows_per_task(to.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(copy_rows)(from, row, to, begin, end);
  });
}

void embedding_forward(const Context&, const OpCall& call) {
  const Embedding op(call);
  if (op.table.dtype == op.y.dtype) return gather_rows(op.table, op.index, op.y);
  parallel_for(op.y.rows, rows_per_task(op.y.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n)
      unpack_row(op.table, op.scales, *op.index.row<std::int32_t>(n), op.y, n);
  });
}

// Tasks divide the sorted order without splitting rows of the same index: one task adds to a row of
// the table, in one order, while the row stays in cache.
void embedding_backward(const Context&, const OpCall& call) {
  const Embedding op(call);
  constexpr std::int64_t kRowsPerTask = 64;
  const std::int64_t N = op.dy.rows;
  const auto index_at = [&](std::int64_t i) {
    return *op.index.row<std::int32_t>(*op.order.row<std::int32_t>(i));
  };
  const auto next_index = [&](std::int64_t i) {
    while (i > 0 && i < N && index_at(i) == index_at(i - 1)) ++i;
    return std::min(i, N);
  };
  parallel_tasks((N + kRowsPerTask - 1) / kRowsPerTask, [&](std::int64_t task) {
    HWY_DYNAMIC_DISPATCH(add_embedding_rows)
    (op, next_index(task * kRowsPerTask), next_index((task + 1) * kRowsPerTask));
  });
}

void gather_forward(const Context&, const OpCall& call) {
  const Gather op(call);
  gather_rows(op.x, op.row, op.y);
}

void gather_backward(const Context&, const OpCall& call) {
  const Gather op(call);
  if (!op.add_dx) fill_zero(op.dx);
  // Each row is gathered at most once, so tasks write to different rows.
  parallel_for(op.dy.rows, rows_per_task(op.dy.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(scatter_rows)(op, begin, end);
  });
}

// Scratch: sigmoid(gate), computed once, followed by the sums over rows.
void smear_forward(const Context&, const OpCall& call) {
  const Smear op(call);
  float* g = static_cast<float*>(call.scratch.data);
  HWY_DYNAMIC_DISPATCH(fill_gate)(op, g);
  parallel_for(op.y.rows, rows_per_task(op.y.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(smear_rows)(op, g, begin, end);
  });
}

void smear_backward(const Context&, const OpCall& call) {
  const Smear op(call);
  float* g = static_cast<float*>(call.scratch.data);
  HWY_DYNAMIC_DISPATCH(fill_gate)(op, g);
  const std::int64_t width = op.dgate ? op.dy.cols : 0, used = row_bytes(op.dy.cols);
  sum_over_rows(
      op.dy.rows, width, call.scratch.columns(used, call.scratch.cols - used),
      [&](std::int64_t begin, std::int64_t end, float* dgate) {
        HWY_DYNAMIC_DISPATCH(smear_backward_rows)(op, g, begin, end, dgate);
      },
      [&](const float* total) { add_total(total, width, op.dgate.row<float>(0), width); });
}

std::int64_t smear_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  const std::int64_t N = in[0].rows, C = in[0].cols;
  return row_bytes(C) + row_sum_bytes(N, C);
}

}  // namespace

constinit const Kernels kEmbedding = {.forward = embedding_forward,
                                      .backward = embedding_backward,
                                      .rows = dtypes({DType::f32, DType::bf16}) | kStoredDTypes,
                                      .wide_gradients = true};
constinit const Kernels kGather = {.forward = gather_forward,
                                   .backward = gather_backward,
                                   .rows = dtypes({DType::f32, DType::bf16}),
                                   .wide_gradients = true};
constinit const Kernels kSmear = {.forward = smear_forward,
                                  .backward = smear_backward,
                                  .rows = dtypes({DType::f32, DType::bf16}),
                                  .wide_gradients = true,
                                  .scratch_bytes = smear_scratch_bytes};

}  // namespace thimble::cpu
#endif
