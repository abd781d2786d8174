// embedding: y[n] = table[index[n]]
//
//   table [V, C]   index [N] i32, 0 <= index < V   y [N, C]
//   order [N] i32  the rows sorted by index (stable): what backward walks; not needed in inference
//   `stored`: inference. The table is stored (stored.h), y is in `rows`
//
// backward: dtable[v] += sum of dy[n] over the rows with index[n] = v, in the order of `order`: a segment sum, so the
//           same bits for any number of threads.
//
// Serves token embeddings, learned positions (index = position) and the bigram hash (index = bigram_bucket).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/op.h"

namespace thimble {

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

std::vector<Shape> embedding_shapes(std::span<const Shape> in, const Attributes&);

// The stable order of rows by index: what the loader ships with every batch. Indices must lie in [0,
// buckets).
void sort_rows(std::span<const std::int32_t> index, std::int64_t buckets, std::span<std::int32_t> order);

// Which row of the bigram table a token takes: ((36313 cur) xor (27191 prev)) mod (buckets - 1), the first
// token of a document the last row (parameter-golf 2.1b; 32-bit arithmetic that wraps, and a remainder that
// is never negative).
std::int32_t bigram_bucket(std::int32_t token, std::int32_t previous, bool first, std::int32_t buckets);

}  // namespace thimble
