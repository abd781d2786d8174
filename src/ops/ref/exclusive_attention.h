#pragma once

#include "ops/exclusive_attention.h"
#include "ops/ref/scalar.h"

namespace thimble::ref {

struct ExclusiveAttentionRef {
  using View = ExclusiveAttention;

  template <class T>
  static void forward(const ExclusiveAttention& op) {
    const std::int64_t D = op.head_size();
    for (std::int64_t n = 0; n < op.y.rows; ++n)
      for (std::int64_t h = 0; h < op.at.heads; ++h) {
        const T* y = op.y.row<T>(n) + h * D;
        const T* v = op.v.row<T>(n) + h / op.group() * D;
        const T length = norm(v, D);
        const T share = dot(y, v, D) / length;
        for (std::int64_t d = 0; d < D; ++d) op.z.row<T>(n)[h * D + d] = y[d] - share * v[d] / length;
      }
  }

  template <class T>
  static void backward(const ExclusiveAttention& op) {
    if (op.dv && !op.add_dv) fill_zero(op.dv);
    const std::int64_t D = op.head_size();
    for (std::int64_t n = 0; n < op.y.rows; ++n)
      for (std::int64_t h = 0; h < op.at.heads; ++h) {
        const std::int64_t kv = h / op.group() * D;
        const T* y = op.y.row<T>(n) + h * D;
        const T* dz = op.dz.row<T>(n) + h * D;
        const T* v = op.v.row<T>(n) + kv;
        const T length = norm(v, D);
        const T yu = dot(y, v, D) / length, zu = dot(dz, v, D) / length;
        for (std::int64_t d = 0; d < D; ++d) {
          const T u = v[d] / length;
          if (op.dy) store(op.dy.row<T>(n)[h * D + d], dz[d] - zu * u, op.add_dy);
          if (op.dv) op.dv.row<T>(n)[kv + d] -= (zu * y[d] + yu * dz[d] - T(2) * yu * zu * u) / length;
        }
      }
  }

 private:
  template <class T>
  static T dot(const T* a, const T* b, std::int64_t count) {
    T sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
    return sum;
  }

  template <class T>
  static T norm(const T* v, std::int64_t count) {
    const T length = std::sqrt(dot(v, v, count));
    return real_part(length) < kSmallestValueNorm ? T(kSmallestValueNorm) : length;
  }
};

}  // namespace thimble::ref
