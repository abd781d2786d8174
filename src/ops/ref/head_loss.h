#pragma once

#include <algorithm>
#include <vector>

#include "ops/head_loss.h"
#include "ops/ref/scalar.h"

namespace thimble::ref {

struct HeadLossRef {
  using View = HeadLoss;

  template <class T>
  static void forward(const HeadLoss& op) {
    for (std::int64_t n = 0; n < op.x.rows; ++n) {
      const std::int32_t target = *op.target.row<std::int32_t>(n);
      const std::vector<T> l = logits<T>(op, n);
      *op.nats.row<T>(n) = target < 0 ? T(0) : log_sum_exp(l) - l[static_cast<std::size_t>(target)];
    }
  }

  template <class T>
  static void backward(const HeadLoss& op) {
    if (op.dx && !op.add_dx) fill_zero(op.dx);
    forward<T>(op);
    for (std::int64_t n = 0; n < op.x.rows; ++n) {
      const std::int32_t target = *op.target.row<std::int32_t>(n);
      if (target < 0) continue;
      const std::vector<T> l = logits<T>(op, n);
      const T lse = log_sum_exp(l);
      for (std::size_t v = 0; v < l.size(); ++v) {
        const T t = op.at.cap > 0 ? l[v] / T(op.at.cap) : T(0);
        const T onehot = v == static_cast<std::size_t>(target) ? T(1) : T(0);
        const T dz = *op.weight.row<T>(n) * (std::exp(l[v] - lse) - onehot) * (T(1) - t * t);
        for (std::int64_t c = 0; c < op.x.cols; ++c) {
          if (op.dx) op.dx.row<T>(n)[c] += dz * op.w.row<T>(static_cast<std::int64_t>(v))[c];
          if (op.dw) op.dw.row<T>(static_cast<std::int64_t>(v))[c] += dz * op.x.row<T>(n)[c];
        }
      }
    }
  }

 private:
  template <class T>
  static std::vector<T> logits(const HeadLoss& op, std::int64_t n) {
    std::vector<T> l(static_cast<std::size_t>(op.w.rows));
    for (std::size_t v = 0; v < l.size(); ++v) {
      for (std::int64_t c = 0; c < op.x.cols; ++c)
        l[v] += op.x.row<T>(n)[c] * op.w.row<T>(static_cast<std::int64_t>(v))[c];
      if (op.at.cap > 0) l[v] = T(op.at.cap) * std::tanh(l[v] / T(op.at.cap));
    }
    return l;
  }

  template <class T>
  static T log_sum_exp(const std::vector<T>& l) {
    auto highest = real_part(l[0]);
    for (T value : l) highest = std::max(highest, real_part(value));
    T sum = 0;
    for (T value : l) sum += std::exp(value - T(highest));
    return std::log(sum) + T(highest);
  }
};

}  // namespace thimble::ref
