#pragma once

#include "ops/embedding.h"
#include "ops/ref/scalar.h"

namespace thimble::ref {

struct EmbeddingRef {
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

}  // namespace thimble::ref
