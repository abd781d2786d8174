#include "ops/fake_quant.h"

#include <vector>

#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"
#include "ops/quantise.h"

namespace thimble::cpu {

void fake_quant_forward(const Context&, const OpCall& call) {
  const FakeQuant op(call);
  const auto width = static_cast<std::size_t>(op.w.cols);
  parallel_for(op.w.rows, rows_per_task(op.w.cols), [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int8_t> q(width);
    for (std::int64_t o = begin; o < end; ++o) {
      const float scale = quantise_row({op.w.row<float>(o), width}, op.bits, q);
      for (std::size_t i = 0; i < width; ++i) op.y.row<float>(o)[i] = scale * static_cast<float>(q[i]);
    }
  });
}

void fake_quant_backward(const Context&, const OpCall& call) {
  const FakeQuant op(call);
  parallel_for(op.dy.rows, rows_per_task(op.dy.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t o = begin; o < end; ++o)
      for (std::int64_t i = 0; i < op.dy.cols; ++i) {
        float& there = op.dw.row<float>(o)[i];
        there = op.add_dw ? there + op.dy.row<float>(o)[i] : op.dy.row<float>(o)[i];
      }
  });
}

}  // namespace thimble::cpu
