#pragma once

#include <algorithm>
#include <vector>

#include "ops/attention.h"
#include "ops/ref/scalar.h"

namespace thimble::ref {

struct AttentionRef {
  using View = Attention;

  template <class T>
  static void forward(const Attention& op) {
    const std::int64_t D = op.head_size();
    for (std::int64_t n = 0; n < op.q.rows; ++n)
      for (std::int64_t h = 0; h < op.at.heads; ++h) {
        const std::int64_t kv = h / op.group() * D;
        std::vector<T> score = scores<T>(op, n, h);
        auto highest = real_part(score[0]);
        for (T s : score) highest = std::max(highest, real_part(s));
        T sum = 0;
        for (T& s : score) s = std::exp(s - T(highest)), sum += s;
        op.lse.row<T>(n)[h] = std::log(sum) + T(highest);
        for (std::int64_t d = 0; d < D; ++d) {
          T y = 0;
          for (std::size_t i = 0; i < score.size(); ++i)
            y += score[i] / sum * op.v.row<T>(first(op, n) + static_cast<std::int64_t>(i))[kv + d];
          op.y.row<T>(n)[h * D + d] = y;
        }
      }
  }

  template <class T>
  static void backward(const Attention& op) {
    clear<T>(op.dq, op.add_dq);
    clear<T>(op.dk, op.add_dk);
    clear<T>(op.dv, op.add_dv);
    const std::int64_t D = op.head_size();
    for (std::int64_t n = 0; n < op.q.rows; ++n)
      for (std::int64_t h = 0; h < op.at.heads; ++h) {
        const std::int64_t kv = h / op.group() * D;
        const T* q = op.q.row<T>(n) + h * D;
        const T* dy = op.dy.row<T>(n) + h * D;
        T delta = 0;
        for (std::int64_t d = 0; d < D; ++d) delta += dy[d] * op.y.row<T>(n)[h * D + d];
        const std::vector<T> score = scores<T>(op, n, h);
        for (std::size_t i = 0; i < score.size(); ++i) {
          const std::int64_t m = first(op, n) + static_cast<std::int64_t>(i);
          const T p = std::exp(score[i] - op.lse.row<T>(n)[h]);
          T dp = 0;
          for (std::int64_t d = 0; d < D; ++d) dp += dy[d] * op.v.row<T>(m)[kv + d];
          const T ds = p * (dp - delta) * T(op.at.scale);
          for (std::int64_t d = 0; d < D; ++d) {
            if (op.dv) op.dv.row<T>(m)[kv + d] += p * dy[d];
            if (op.dq) op.dq.row<T>(n)[h * D + d] += ds * op.k.row<T>(m)[kv + d];
            if (op.dk) op.dk.row<T>(m)[kv + d] += ds * q[d];
          }
        }
      }
  }

 private:
  static std::int64_t first(const Attention& op, std::int64_t n) { return *op.first.row<std::int32_t>(n); }

  template <class T>
  static std::vector<T> scores(const Attention& op, std::int64_t n, std::int64_t h) {
    const std::int64_t D = op.head_size(), kv = h / op.group() * D;
    std::vector<T> score;
    for (std::int64_t m = first(op, n); m <= n; ++m) {
      T dot = 0;
      for (std::int64_t d = 0; d < D; ++d) dot += op.q.row<T>(n)[h * D + d] * op.k.row<T>(m)[kv + d];
      score.push_back(T(op.at.scale) * dot);
    }
    return score;
  }

  template <class T>
  static void clear(const Tensor& gradient, bool add) {
    if (gradient && !add) fill_zero(gradient);
  }
};

}  // namespace thimble::ref
