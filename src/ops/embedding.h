// Ops that select rows by index: embedding, gather, smear.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/op.h"
#include "graph/tape.h"

namespace thimble {

// embedding: y[n] = table[index[n]]
//
//   table  [V, C]             index  [N] i32, 0 <= index < V        y  [N, C]
//   order  [N] i32  the rows, stably sorted by index; needed for backward only
//
// backward: dtable[v] += sum of dy[n] over the rows with index[n] = v
//           (a segment sum in the order of `order`: same bits for any thread count)
//
// Used for token embeddings, learned positions (index = position) and the bigram hash (index =
// bigram_bucket). With the attribute `stored` (inference only) the table is a stored matrix
// (ops/linear.h) and y has the dtype `rows`.

struct EmbeddingAttributes {
  bool stored = false;
  DType rows = DType::f32;
};

struct Embedding {
  Tensor table, index, order, scales, y;
  Tensor dy, dtable;
  EmbeddingAttributes at;

  explicit Embedding(const OpCall& c)
      : table(c.input(0)),
        index(c.input(1)),
        order(c.input(2)),
        scales(c.input(3)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dtable(c.d_input(0)),
        at(c.attributes.as<EmbeddingAttributes>()) {}
};

// The stable order of rows by index, which the loader adds to every batch. Throws if an index is
// not in [0, buckets).
void sort_rows(std::span<const std::int32_t> index, std::int64_t buckets, std::span<std::int32_t> order);

// The row of the bigram table for a token: ((36313 cur) xor (27191 prev)) mod (buckets - 1). The
// first token of a document gets the last row. As in parameter-golf, the arithmetic wraps at 32
// bits and the remainder is never negative.
std::int32_t bigram_bucket(std::int32_t token, std::int32_t previous, bool first, std::int32_t buckets);

// gather: y[m] = x[row[m]], so that logits are computed only for rows that are sampled or scored
//
//   x  [N, C]   row  [M] i32, each row at most once   y  [M, C]
//
// backward: dx[row[m]] <- dy[m], dx of all other rows <- 0

struct Gather {
  Tensor x, row, y;
  Tensor dy, dx;
  bool add_dx;

  explicit Gather(const OpCall& c)
      : x(c.input(0)),
        row(c.input(1)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dx(c.d_input(0)),
        add_dx(c.adds(0)) {}
};

// smear gate: y[n] = (1 - g) x[n] + g x[previous[n]],  g = sigmoid(gate),  x[-1] = 0
//
//   x     [M, C], M >= N   previous  [N] i32  row of the previous token, -1 at a document's start
//   gate  [1, C]           y         [N, C]
//
// When decoding, the rows of the previous tokens are appended after the N current ones (M > N). In
// training M = N, and previous[n] is n - 1 or -1.
//
// backward: dx[m] <- (1 - g) dy[m] + g dy[m + 1] where previous[m + 1] = m
//           dgate += g (1 - g) * sum over n of dy[n] (x[previous[n]] - x[n])
//                    (fixed blocks: same bits for any thread count)

struct Smear {
  Tensor x, gate, previous, y;
  Tensor dy, dx, dgate;
  bool add_dx;

  explicit Smear(const OpCall& c)
      : x(c.input(0)),
        gate(c.input(1)),
        previous(c.input(2)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dx(c.d_input(0)),
        dgate(c.d_input(1)),
        add_dx(c.adds(0)) {}
};

namespace cpu {
extern const Kernels kEmbedding, kGather, kSmear;
}  // namespace cpu

namespace op {

extern const OpDefinition kEmbedding, kGather, kSmear;

Value embedding(Tape& tape, Value table, Value index, Value order = {}, Value scales = {});
Value gather(Tape& tape, Value x, Value row);
Value smear(Tape& tape, Value x, Value gate, Value previous);

}  // namespace op

}  // namespace thimble
