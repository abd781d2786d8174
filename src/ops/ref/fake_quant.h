#pragma once

#include <vector>

#include "ops/fake_quant.h"
#include "ops/quantise.h"
#include "ops/ref/cast.h"
#include "ops/ref/scalar.h"

namespace thimble::ref {

struct FakeQuantRef {
  using View = FakeQuant;

  template <class T>
  static void forward(const FakeQuant& op) {
    std::vector<float> row(static_cast<std::size_t>(op.w.cols));
    std::vector<std::int8_t> q(row.size());
    for (std::int64_t o = 0; o < op.w.rows; ++o) {
      for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(real_part(op.w.row<T>(o)[i]));
      const float scale = quantise_row(row, op.at.bits, q);
      for (std::size_t i = 0; i < row.size(); ++i) {
        const float value = rounded_to(op.at.to, scale * static_cast<float>(q[i]));
        if (op.y.dtype == DType::bf16)
          op.y.row<bf16>(o)[i] = to_bf16(value);
        else if (op.y.dtype == DType::f16)
          op.y.row<f16>(o)[i] = to_f16(value);
        else
          op.y.row<T>(o)[i] = T(value);
      }
    }
  }

  template <class T>
  static void backward(const FakeQuant& op) {
    for (std::int64_t o = 0; o < op.dy.rows; ++o)
      for (std::int64_t i = 0; i < op.dy.cols; ++i) {
        const T dy = op.dy.dtype == DType::bf16  ? T(to_f32(op.dy.row<bf16>(o)[i]))
                     : op.dy.dtype == DType::f16 ? T(to_f32(op.dy.row<f16>(o)[i]))
                                                 : op.dy.row<T>(o)[i];
        store(op.dw.row<T>(o)[i], dy, op.add_dw);
      }
  }
};

}  // namespace thimble::ref
