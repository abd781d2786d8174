#pragma once

#include <vector>

#include "ops/ref/scalar.h"
#include "ops/rope.h"

namespace thimble::ref {

struct RopeRef {
  using View = Rope;

  template <class T>
  static void forward(const Rope& op) {
    const std::int64_t D = op.x.cols / op.at.heads;
    for (std::int64_t n = 0; n < op.x.rows; ++n)
      for (std::int64_t h = 0; h < op.at.heads; ++h) {
        const T* x = op.x.row<T>(n) + h * D;
        T rstd = 1;
        if (op.at.norm) {
          T squares = 0;
          for (std::int64_t d = 0; d < D; ++d) squares += x[d] * x[d];
          rstd = T(1) / std::sqrt(squares / T(D) + T(op.at.eps));
        }
        if (op.at.norm || h == 0) op.rstd.row<T>(n)[h] = rstd;
        const std::vector<T> turned = turn(op, n, normed(op, x, rstd), 1);
        for (std::int64_t d = 0; d < D; ++d)
          op.y.row<T>(n)[h * D + d] = gain_of<T>(op, h) * turned[static_cast<std::size_t>(d)];
      }
  }

  template <class T>
  static void backward(const Rope& op) {
    const std::int64_t D = op.x.cols / op.at.heads;
    for (std::int64_t n = 0; n < op.x.rows; ++n)
      for (std::int64_t h = 0; h < op.at.heads; ++h) {
        const T* x = op.x.row<T>(n) + h * D;
        const T* dy = op.dy.row<T>(n) + h * D;
        const T rstd = op.at.norm ? op.rstd.row<T>(n)[h] : T(1);
        const std::vector<T> turned = turn(op, n, normed(op, x, rstd), 1);
        std::vector<T> u(static_cast<std::size_t>(D));
        T dgain = 0;
        for (std::size_t d = 0; d < u.size(); ++d)
          u[d] = dy[d] * gain_of<T>(op, h), dgain += dy[d] * turned[d];
        if (op.dgain) op.dgain.row<T>(0)[op.dgain.cols == 1 ? 0 : h] += dgain;

        u = turn(op, n, u, -1);
        T mean = 0;
        for (std::size_t d = 0; d < u.size(); ++d) {
          if (op.dw) op.dw.row<T>(0)[d] += u[d] * x[d] * rstd;
          u[d] *= op.w ? op.w.row<T>(0)[d] : T(1);
          mean += u[d] * x[d] * rstd / T(D);
        }
        for (std::size_t d = 0; op.dx && d < u.size(); ++d)
          store(op.dx.row<T>(n)[h * D + static_cast<std::int64_t>(d)],
                op.at.norm ? rstd * (u[d] - x[d] * rstd * mean) : u[d], op.add_dx);
      }
  }

 private:
  template <class T>
  static T gain_of(const Rope& op, std::int64_t h) {
    return scale_at(op.gain ? op.gain.row<T>(0) : nullptr, op.gain.cols, h);
  }

  template <class T>
  static std::vector<T> normed(const Rope& op, const T* x, T rstd) {
    std::vector<T> y(static_cast<std::size_t>(op.x.cols / op.at.heads));
    for (std::size_t d = 0; d < y.size(); ++d) y[d] = x[d] * rstd * (op.w ? op.w.row<T>(0)[d] : T(1));
    return y;
  }

  // direction -1 undoes direction +1.
  template <class T>
  static std::vector<T> turn(const Rope& op, std::int64_t n, const std::vector<T>& x, int direction) {
    const auto half = static_cast<std::size_t>(op.turns.cols / 2);
    const T* turns = op.turns.row<T>(*op.position.row<std::int32_t>(n));
    std::vector<T> y = x;
    for (std::size_t i = 0; i < half; ++i) {
      const T cosine = turns[i], sine = T(direction) * turns[i + half];
      y[i] = x[i] * cosine - x[i + half] * sine;
      y[i + half] = x[i] * sine + x[i + half] * cosine;
    }
    return y;
  }
};

}  // namespace thimble::ref
