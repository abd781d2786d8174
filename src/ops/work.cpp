#include "ops/work.h"

#include "ops/attention.h"
#include "ops/head_loss.h"
#include "ops/linear.h"

namespace thimble {

namespace {

double product(const Tensor& x, const Tensor& weight) {
  return 2.0 * static_cast<double>(x.rows) * static_cast<double>(weight.count());
}

// Pairs (n, m) that attend to each other.
double attended_pairs(const Tensor& first) {
  double pairs = 0;
  for (std::int64_t n = 0; n < first.rows; ++n)
    pairs += static_cast<double>(n - *first.row<std::int32_t>(n) + 1);
  return pairs;
}

double flops_of(const OpDef& def, const OpCall& call, bool backward) {
  switch (def.op) {
    case Op::linear: {
      const Linear op(call);
      if (!backward) return product(op.x, op.w);
      return product(op.x, op.w) * ((op.dx ? 1 : 0) + (op.dw ? 1 : 0));
    }
    case Op::head_loss: {
      const HeadLoss op(call);
      return product(op.x, op.w) * (backward ? 1 + (op.dx ? 1 : 0) + (op.dw ? 1 : 0) : 1);
    }
    case Op::attention: {
      const Attention op(call);
      if (!op.first || op.first.device != Device::cpu) return 0;
      // Forward: q k^T and p v. Backward: dp and dv, dq and dk; the scores that kernels compute anew do not count.
      return 2.0 * attended_pairs(op.first) * static_cast<double>(op.q.cols) * (backward ? 4 : 2);
    }
    default:
      return 0;
  }
}

double bytes_of(std::span<const Tensor> tensors) {
  double bytes = 0;
  for (const Tensor& tensor : tensors)
    if (tensor) bytes += static_cast<double>(tensor.shape().bytes());
  return bytes;
}

}  // namespace

Work work_of(const OpDef& def, const OpCall& call) {
  const bool backward = !call.d_in.empty();
  double bytes = bytes_of(call.in) + bytes_of(call.out) + bytes_of(call.d_out) + bytes_of(call.d_in);
  for (std::size_t i = 0; i < call.d_in.size(); ++i)
    if (call.d_in[i] && call.adds(i)) bytes += static_cast<double>(call.d_in[i].shape().bytes());
  return {flops_of(def, call, backward), bytes};
}

}  // namespace thimble
