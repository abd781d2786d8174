#pragma once

#include <algorithm>
#include <vector>

#include "ops/cached_attention.h"
#include "ops/ref/scalar.h"

namespace thimble::ref {

struct CachedAttentionRef {
  using View = CachedAttention;

  template <class T>
  static void forward(const CachedAttention& op) {
    for (std::int64_t n = 0; n < op.q.rows; ++n) {
      const std::int64_t row = slot_row(op, n) + position(op, n);
      std::copy_n(op.k.row<T>(n), op.k.cols, op.k_cache.row<T>(row));
      std::copy_n(op.v.row<T>(n), op.v.cols, op.v_cache.row<T>(row));
    }
    for (std::int64_t n = 0; n < op.q.rows; ++n)
      for (std::int64_t h = 0; h < op.at.heads; ++h) attend<T>(op, n, h);
  }

 private:
  static std::int64_t position(const CachedAttention& op, std::int64_t n) {
    return *op.position.row<std::int32_t>(n);
  }
  static std::int64_t slot_row(const CachedAttention& op, std::int64_t n) {
    return *op.slot.row<std::int32_t>(n) * std::int64_t{op.at.context};
  }

  template <class T>
  static void attend(const CachedAttention& op, std::int64_t n, std::int64_t h) {
    const std::int64_t D = op.head_size(), kv = h / op.group() * D;
    std::vector<T> score;
    for (std::int64_t m = 0; m <= position(op, n); ++m) {
      T dot = 0;
      for (std::int64_t d = 0; d < D; ++d)
        dot += op.q.row<T>(n)[h * D + d] * op.k_cache.row<T>(slot_row(op, n) + m)[kv + d];
      score.push_back(T(op.at.scale) * dot);
    }
    auto highest = real_part(score[0]);
    for (T s : score) highest = std::max(highest, real_part(s));
    T sum = 0;
    for (T& s : score) s = std::exp(s - T(highest)), sum += s;
    for (std::int64_t d = 0; d < D; ++d) {
      T y = 0;
      for (std::size_t m = 0; m < score.size(); ++m)
        y += score[m] / sum * op.v_cache.row<T>(slot_row(op, n) + static_cast<std::int64_t>(m))[kv + d];
      op.y.row<T>(n)[h * D + d] = y;
    }
  }
};

}  // namespace thimble::ref
