#pragma once

#include <vector>

#include "ops/ref/scalar.h"
#include "ops/residual.h"

namespace thimble::ref {

struct AddScaledRef {
  using View = AddScaled;

  template <class T>
  static void forward(const AddScaled& op) {
    for (std::int64_t n = 0; n < op.y.rows; ++n)
      for (std::int64_t c = 0; c < op.y.cols; ++c)
        op.y.row<T>(n)[c] = op.x.row<T>(n)[c] + T(op.factor) * scale<T>(op, c) * op.branch.row<T>(n)[c];
  }

  template <class T>
  static void backward(const AddScaled& op) {
    for (std::int64_t n = 0; n < op.dy.rows; ++n)
      for (std::int64_t c = 0; c < op.dy.cols; ++c) {
        const T dy = op.dy.row<T>(n)[c];
        if (op.dx) store(op.dx.row<T>(n)[c], dy, op.add_dx);
        if (op.dbranch) store(op.dbranch.row<T>(n)[c], T(op.factor) * scale<T>(op, c) * dy, op.add_dbranch);
        if (op.dscale)
          op.dscale.row<T>(0)[op.dscale.cols == 1 ? 0 : c] += T(op.factor) * dy * op.branch.row<T>(n)[c];
      }
  }

 private:
  template <class T>
  static T scale(const AddScaled& op, std::int64_t c) {
    return scale_at(op.scale ? op.scale.row<T>(0) : nullptr, op.scale.cols, c);
  }
};

struct ResidualMixRef {
  using View = ResidualMix;

  template <class T>
  static void forward(const ResidualMix& op) {
    for (std::int64_t n = 0; n < op.y.rows; ++n)
      for (std::int64_t c = 0; c < op.y.cols; ++c)
        op.y.row<T>(n)[c] = mix<T>(op, 0, c) * op.x.row<T>(n)[c] + mix<T>(op, 1, c) * op.x0.row<T>(n)[c];
  }

  template <class T>
  static void backward(const ResidualMix& op) {
    for (std::int64_t n = 0; n < op.dy.rows; ++n)
      for (std::int64_t c = 0; c < op.dy.cols; ++c) {
        const T dy = op.dy.row<T>(n)[c];
        if (op.dx) store(op.dx.row<T>(n)[c], mix<T>(op, 0, c) * dy, op.add_dx);
        if (op.dx0) store(op.dx0.row<T>(n)[c], mix<T>(op, 1, c) * dy, op.add_dx0);
        if (!op.dmix) continue;
        const std::int64_t column = op.dmix.cols == 1 ? 0 : c;
        op.dmix.row<T>(0)[column] += dy * op.x.row<T>(n)[c];
        op.dmix.row<T>(1)[column] += dy * op.x0.row<T>(n)[c];
      }
  }

 private:
  template <class T>
  static T mix(const ResidualMix& op, std::int64_t which, std::int64_t c) {
    return scale_at(op.mix.row<T>(which), op.mix.cols, c);
  }
};

struct ResidualNormRef {
  using View = ResidualNorm;

  template <class T>
  static void forward(const ResidualNorm& op) {
    const std::int64_t C = op.x.cols;
    for (std::int64_t n = 0; n < op.x.rows; ++n) {
      T* s = op.s.row<T>(n);
      T squares = 0;
      for (std::int64_t c = 0; c < C; ++c) {
        s[c] = op.x.row<T>(n)[c] + scale<T>(op, c) * op.branch.row<T>(n)[c];
        squares += s[c] * s[c];
      }
      const T rstd = T(1) / std::sqrt(squares / T(C) + T(op.at.eps));
      for (std::int64_t c = 0; c < C; ++c)
        op.h.row<T>(n)[c] = T(op.at.norm_scale) * s[c] * rstd * (op.w ? op.w.row<T>(0)[c] : T(1));
      *op.rstd.row<T>(n) = rstd;
    }
  }

  template <class T>
  static void backward(const ResidualNorm& op) {
    const std::int64_t C = op.s.cols;
    for (std::int64_t n = 0; n < op.s.rows; ++n) {
      const T* s = op.s.row<T>(n);
      const T* dh = op.dh.row<T>(n);
      const T rstd = *op.rstd.row<T>(n);
      const auto g = [&](std::int64_t c) {
        return T(op.at.norm_scale) * dh[c] * (op.w ? op.w.row<T>(0)[c] : T(1));
      };
      T mean = 0;
      for (std::int64_t c = 0; c < C; ++c) mean += g(c) * s[c] * rstd / T(C);
      for (std::int64_t c = 0; c < C; ++c) {
        if (op.dw) op.dw.row<T>(0)[c] += T(op.at.norm_scale) * dh[c] * s[c] * rstd;
        const T ds = (op.ds ? op.ds.row<T>(n)[c] : T(0)) + rstd * (g(c) - s[c] * rstd * mean);
        if (op.dx) store(op.dx.row<T>(n)[c], ds, op.add_dx);
        if (op.dbranch) store(op.dbranch.row<T>(n)[c], scale<T>(op, c) * ds, op.add_dbranch);
        if (op.dscale) op.dscale.row<T>(0)[op.dscale.cols == 1 ? 0 : c] += ds * op.branch.row<T>(n)[c];
      }
    }
  }

 private:
  template <class T>
  static T scale(const ResidualNorm& op, std::int64_t c) {
    return scale_at(op.scale ? op.scale.row<T>(0) : nullptr, op.scale.cols, c);
  }
};

}  // namespace thimble::ref
