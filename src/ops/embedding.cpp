#include "ops/embedding.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "ops/definition.h"

namespace thimble {

namespace {

std::vector<Shape> embedding_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const auto at = attributes.as<EmbeddingAttributes>();
  const ShapeCheck c("embedding", in, 2, 4);
  const Shape& table = at.stored ? c.matrix(0, "table", at.rows, 3) : c.rows(0, "table");
  check(at.stored || !c.has(3), "[embedding] expected scales only with a stored table");
  const Shape& index = c.integers(1, "index");
  if (c.has(2)) c.integers(2, "order", index.rows);
  return {{index.rows, table.cols, at.stored ? at.rows : table.dtype}};
}

std::vector<Shape> gather_shapes(std::span<const Shape> in, const Attributes&) {
  const ShapeCheck c("gather", in, 2, 2);
  const Shape& x = c.rows(0, "x");
  const Shape& row = c.integers(1, "row");
  check(row.rows <= x.rows, "[gather] {} rows requested, x has {}", row.rows, x.rows);
  return {{row.rows, x.cols, x.dtype}};
}

std::vector<Shape> smear_shapes(std::span<const Shape> in, const Attributes&) {
  const ShapeCheck c("smear", in, 3, 3);
  const Shape& x = c.rows(0, "x");
  c.vector(1, "gate", x.cols);
  const Shape& previous = c.integers(2, "previous");
  check(previous.rows <= x.rows, "[smear] {} rows requested, x has {}", previous.rows, x.rows);
  return {{previous.rows, x.cols, x.dtype}};
}

struct EmbeddingFormula {
  using View = Embedding;

  template <class T>
  static void forward(const Embedding& op) {
    for (std::int64_t n = 0; n < op.y.rows; ++n)
      for (std::int64_t c = 0; c < op.y.cols; ++c)
        op.y.row<T>(n)[c] = op.table.row<T>(*op.index.row<std::int32_t>(n))[c];
  }

  template <class T>
  static void backward(const Embedding& op) {
    for (std::int64_t n = 0; n < op.dy.rows; ++n)
      for (std::int64_t c = 0; c < op.dy.cols; ++c)
        op.dtable.row<T>(*op.index.row<std::int32_t>(n))[c] += op.dy.row<T>(n)[c];
  }
};

struct GatherFormula {
  using View = Gather;

  template <class T>
  static void forward(const Gather& op) {
    for (std::int64_t m = 0; m < op.y.rows; ++m)
      for (std::int64_t c = 0; c < op.y.cols; ++c)
        op.y.row<T>(m)[c] = op.x.row<T>(*op.row.row<std::int32_t>(m))[c];
  }

  template <class T>
  static void backward(const Gather& op) {
    if (!op.add_dx) fill_zero(op.dx);
    for (std::int64_t m = 0; m < op.dy.rows; ++m)
      for (std::int64_t c = 0; c < op.dy.cols; ++c)
        op.dx.row<T>(*op.row.row<std::int32_t>(m))[c] += op.dy.row<T>(m)[c];
  }
};

struct SmearFormula {
  using View = Smear;

  template <class T>
  static void forward(const Smear& op) {
    for (std::int64_t n = 0; n < op.y.rows; ++n) {
      const std::int32_t before = *op.previous.row<std::int32_t>(n);
      for (std::int64_t c = 0; c < op.y.cols; ++c) {
        const T g = sigmoid(op.gate.row<T>(0)[c]);
        const T previous = before < 0 ? T(0) : op.x.row<T>(before)[c];
        op.y.row<T>(n)[c] = (T(1) - g) * op.x.row<T>(n)[c] + g * previous;
      }
    }
  }

  template <class T>
  static void backward(const Smear& op) {
    const std::int64_t N = op.dy.rows, C = op.dy.cols;
    for (std::int64_t c = 0; c < C; ++c) {
      const T g = sigmoid(op.gate.row<T>(0)[c]);
      T dg = 0;
      for (std::int64_t n = 0; n < N; ++n) {
        const T dy = op.dy.row<T>(n)[c];
        const std::int32_t before = *op.previous.row<std::int32_t>(n);
        const T previous = before < 0 ? T(0) : op.x.row<T>(before)[c];
        dg += dy * (previous - op.x.row<T>(n)[c]);
        if (!op.dx) continue;
        T dx = (T(1) - g) * dy;
        if (n + 1 < N && *op.previous.row<std::int32_t>(n + 1) == n) dx += g * op.dy.row<T>(n + 1)[c];
        store(op.dx.row<T>(n)[c], dx, op.add_dx);
      }
      if (op.dgate) op.dgate.row<T>(0)[c] += g * (T(1) - g) * dg;
    }
  }
};

}  // namespace

void sort_rows(std::span<const std::int32_t> index, std::int64_t buckets, std::span<std::int32_t> order) {
  check(order.size() == index.size(), "[embedding] order has {} rows, index has {}", order.size(),
        index.size());
  std::vector<std::int32_t> start(static_cast<std::size_t>(buckets) + 1, 0);
  for (std::size_t n = 0; n < index.size(); ++n) {
    check(index[n] >= 0 && index[n] < buckets, "[embedding] row {} has index {}, the table has {} rows", n,
          index[n], buckets);
    ++start[static_cast<std::size_t>(index[n]) + 1];
  }
  for (std::size_t b = 1; b < start.size(); ++b) start[b] += start[b - 1];
  for (std::size_t n = 0; n < index.size(); ++n)
    order[static_cast<std::size_t>(start[static_cast<std::size_t>(index[n])]++)] =
        static_cast<std::int32_t>(n);
}

std::int32_t bigram_bucket(std::int32_t token, std::int32_t previous, bool first, std::int32_t buckets) {
  if (first) return buckets - 1;
  const std::uint32_t mixed =
      36313u * static_cast<std::uint32_t>(token) ^ 27191u * static_cast<std::uint32_t>(previous);
  const std::int64_t remainder = static_cast<std::int32_t>(mixed) % (std::int64_t{buckets} - 1);
  return static_cast<std::int32_t>(remainder < 0 ? remainder + buckets - 1 : remainder);
}

constinit const OpDefinition op::kEmbedding = {.name = "embedding",
                                               .inputs = {{{"table", is::differentiable | is::parameter},
                                                           {"index", is::saved},
                                                           {"order", is::saved | is::needed_in_training},
                                                           {"scales"}}},
                                               .outputs = {{{.name = "y"}}},
                                               .shapes = embedding_shapes,
                                               .reference = &reference_kernels<EmbeddingFormula>,
                                               .cpu = &cpu::kEmbedding};

constinit const OpDefinition op::kGather = {.name = "gather",
                                            .inputs = {{{"x", is::differentiable}, {"row", is::saved}}},
                                            .outputs = {{{.name = "y"}}},
                                            .shapes = gather_shapes,
                                            .reference = &reference_kernels<GatherFormula>,
                                            .cpu = &cpu::kGather};

constinit const OpDefinition op::kSmear = {
    .name = "smear",
    .inputs = {{{"x", is::differentiable | is::saved},
                {"gate", is::differentiable | is::parameter | is::saved},
                {"previous", is::saved}}},
    .outputs = {{{.name = "y"}}},
    .shapes = smear_shapes,
    .reference = &reference_kernels<SmearFormula>,
    .cpu = &cpu::kSmear};

Value op::embedding(Tape& tape, Value table, Value index, Value order, Value scales) {
  const bool stored = tape.info(table).shape.dtype != tape.dtype();
  return tape.record(op::kEmbedding, {table, index, order, scales},
                     EmbeddingAttributes{stored, tape.dtype()})[0];
}

Value op::gather(Tape& tape, Value x, Value row) {
  return tape.record(op::kGather, {x, row})[0];
}

Value op::smear(Tape& tape, Value x, Value gate, Value previous) {
  return tape.record(op::kSmear, {x, gate, previous})[0];
}

}  // namespace thimble
