#include "ops/gated_skip.h"

#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/put_both.cuh"

namespace thimble::cuda {

namespace {

// sigmoid(gate), and 1 minus it without the cancellation.
struct Share {
  float g, rest;

  __device__ explicit Share(float gate) {
    const float power = expf(-fabsf(gate)), large = 1 / (1 + power), small = power * large;
    g = gate >= 0 ? large : small;
    rest = gate >= 0 ? small : large;
  }
};

template <int V>
void forward(cudaStream_t stream, const GatedSkip& op) {
  const View x(op.x), skip(op.skip), w(op.w), gate(op.gate), y(op.y);
  for_each_pack<V>("gated_skip", stream, op.y.rows, op.y.cols, [=] __device__(std::int64_t row, int c) {
    float a[V], b[V], weight[V], s[V];
    load(x, row, c, a);
    load(skip, row, c, b);
    load(w, 0, c, weight);
    load(gate, 0, c, s);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const Share share(s[i]);
      a[i] = share.g * a[i] + share.rest * weight[i] * b[i];
    }
    store(y, row, c, a);
  });
}

template <int V>
void backward(cudaStream_t stream, const GatedSkip& op, void* scratch) {
  const View x(op.x), skip(op.skip), w(op.w), gate(op.gate), dy(op.dy);
  const bool wants_sums = op.dw || op.dgate;
  const PutBoth both(op.dx, op.add_dx, op.dskip, op.add_dskip);
  const auto body = [=] __device__(const RowsOfThread& rows, int c, float(&sums)[2][V]) {
    float weight[V], s[V];
    load(w, 0, c, weight);
    load(gate, 0, c, s);
    rows.each([&](std::int64_t row) {
      float d[V], a[V] = {}, b[V] = {}, earlier[V], earlier_skip[V];
      load(dy, row, c, d);
      if (wants_sums) {
        load(x, row, c, a);
        load(skip, row, c, b);
      }
      both.load(row, c, earlier, earlier_skip);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const Share share(s[i]);
        sums[0][i] += share.rest * d[i] * b[i];
        sums[1][i] += share.g * share.rest * d[i] * (a[i] - weight[i] * b[i]);
        a[i] = share.g * d[i];
        b[i] = share.rest * weight[i] * d[i];
      }
      both.store(row, c, a, b, earlier, earlier_skip);
    });
  };
  for_columns_with_sums<V, 2>("gated_skip backward", stream, op.dy.rows, op.dy.cols, scratch,
                              {{View(op.dw), View(op.dgate)}}, body);
}

}  // namespace

void gated_skip_forward(const Context& context, const OpCall& call) {
  const GatedSkip op(call);
  if (vectorised(op.x, {op.skip, op.w, op.gate, op.y}))
    forward<kVector>(stream_of(context), op);
  else
    forward<1>(stream_of(context), op);
}

void gated_skip_backward(const Context& context, const OpCall& call) {
  const GatedSkip op(call);
  if (vectorised(op.x, {op.skip, op.w, op.gate, op.dy, op.dx, op.dskip}))
    backward<kVector>(stream_of(context), op, call.scratch.data);
  else
    backward<1>(stream_of(context), op, call.scratch.data);
}

}  // namespace thimble::cuda
