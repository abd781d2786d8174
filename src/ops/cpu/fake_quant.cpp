#include "ops/fake_quant.h"

#include <vector>

#include "ops/cpu/cast.h"
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
      const float scale = quantise_row({op.w.row<float>(o), width}, op.at.bits, q);
      const auto value = [&](std::size_t i) { return scale * static_cast<float>(q[i]); };
      if (op.y.dtype == DType::bf16)
        for (std::size_t i = 0; i < width; ++i) op.y.row<bf16>(o)[i] = to_bf16(value(i));
      else
        for (std::size_t i = 0; i < width; ++i) op.y.row<float>(o)[i] = value(i);
    }
  });
}

void fake_quant_backward(const Context&, const OpCall& call) {
  const FakeQuant op(call);
  cast_into(op.dy, op.dw, op.add_dw);
}

}  // namespace thimble::cpu
