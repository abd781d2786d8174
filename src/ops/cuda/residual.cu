// add_scaled, residual_mix and gated_skip, element by element. Backward computes the gradients of
// their vectors in the same pass over memory.
#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/row_registers.cuh"
#include "ops/residual.h"

namespace thimble::cuda {

namespace {

// Stores the gradients of an op's two inputs. Previous contents are loaded together with the other
// inputs, before anything is stored. If both inputs are the same value (x and x0 of the first
// layer, the innermost skip), its gradient is the sum.
struct GradientPair {
  View first, second;
  bool add_first, add_second, one;

  GradientPair(const Tensor& a, bool add_a, const Tensor& b, bool add_b)
      : first(a),
        second(b),
        add_first(a && add_a),
        add_second(b && add_b && a.data != b.data),
        one(a && a.data == b.data) {}

  template <int V>
  __device__ void load(std::int64_t row, int c, float (&a)[V], float (&b)[V]) const {
#pragma unroll
    for (int i = 0; i < V; ++i) a[i] = b[i] = 0;
    if (add_first) cuda::load(first, row, c, a);
    if (add_second) cuda::load(second, row, c, b);
  }
  template <int V>
  __device__ void store(std::int64_t row, int c, float (&a)[V], float (&b)[V], const float (&earlier_a)[V],
                        const float (&earlier_b)[V]) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      a[i] += earlier_a[i];
      b[i] += one ? a[i] : earlier_b[i];
    }
    if (first && !one) cuda::store(first, row, c, a);
    if (second) cuda::store(second, row, c, b);
  }
};

template <int V>
void add_scaled(cudaStream_t stream, const AddScaled& op) {
  const View x(op.x), branch(op.branch), scale(op.scale), y(op.y);
  const float factor = op.factor;
  for_each_pack<V>("add_scaled", stream, op.y.rows, op.y.cols, [=] __device__(std::int64_t row, int c) {
    float a[V], b[V], s[V];
    load(x, row, c, a);
    load(branch, row, c, b);
    load_scale(scale, 0, c, s);
#pragma unroll
    for (int i = 0; i < V; ++i) a[i] += factor * s[i] * b[i];
    store(y, row, c, a);
  });
}

template <int V>
void add_scaled_gradients(cudaStream_t stream, const AddScaled& op, void* scratch) {
  const View branch(op.branch), scale(op.scale), dy(op.dy);
  const float factor = op.factor;
  const bool needs_scale = static_cast<bool>(op.dscale);
  const GradientPair both(op.dx, op.add_dx, op.dbranch, op.add_dbranch);
  const auto body = [=] __device__(const RowsOfThread& rows, int c, float(&sums)[1][V]) {
    float gain[V];
    load_scale(scale, 0, c, gain);
    rows.each([&](std::int64_t row) {
      float g[V], b[V] = {}, earlier[V], earlier_branch[V];
      load(dy, row, c, g);
      if (needs_scale) load(branch, row, c, b);
      both.load(row, c, earlier, earlier_branch);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        sums[0][i] += factor * g[i] * b[i];
        b[i] = factor * gain[i] * g[i];
      }
      both.store(row, c, g, b, earlier, earlier_branch);
    });
  };
  for_columns_with_sums<V, 1>("add_scaled backward", stream, op.dy.rows, op.dy.cols, scratch,
                              {{View(op.dscale)}}, body);
}

// The same with rows in registers. Not usable if both gradients share memory, because the second
// must read what the first stored.
template <int P>
void add_scaled_gradient_rows(cudaStream_t stream, const AddScaled& op, void* scratch) {
  const View branch(op.dscale ? op.branch : Tensor{}), scale(op.scale), dy(op.dy);
  const GradientRow<P> dx{View(op.dx), op.add_dx}, dbranch{View(op.dbranch), op.add_dbranch};
  const float factor = op.factor;
  const auto body = [=] __device__(const RowsOfWarp& rows, RowSums<P, 1>& sums) {
    const Row<P> gain = load_scale_row<P>(scale);
    rows.each([&](std::int64_t row) {
      const RawRow<P> raw = fetch_row<P>(dy, row), raw_branch = fetch_row<P>(branch, row),
                      before = dx.fetch(row), branch_before = dbranch.fetch(row);
      Row<P> g = unpack_row(raw), b = unpack_row(raw_branch);
#pragma unroll
      for (int p = 0; p < P; ++p)
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          sums.of[0].at[p][i] += factor * g.at[p][i] * b.at[p][i];
          b.at[p][i] = factor * gain.at[p][i] * g.at[p][i];
        }
      dx.put(row, g, before);
      dbranch.put(row, b, branch_before);
    });
  };
  for_rows_with_sums<P, 1>("add_scaled backward", stream, op.dy.rows, op.dy.cols, scratch,
                           {{View(op.dscale)}}, body);
}

template <int V>
void residual_mix(cudaStream_t stream, const ResidualMix& op) {
  const View x(op.x), x0(op.x0), mix(op.mix), y(op.y);
  for_each_pack<V>("residual_mix", stream, op.y.rows, op.y.cols, [=] __device__(std::int64_t row, int c) {
    float a[V], b[V], m0[V], m1[V];
    load(x, row, c, a);
    load(x0, row, c, b);
    load_scale(mix, 0, c, m0);
    load_scale(mix, 1, c, m1);
#pragma unroll
    for (int i = 0; i < V; ++i) a[i] = mixed(m0[i], a[i], m1[i], b[i]);
    store(y, row, c, a);
  });
}

template <int V>
void residual_mix_gradients(cudaStream_t stream, const ResidualMix& op, void* scratch) {
  const View x(op.x), x0(op.x0), mix(op.mix), dy(op.dy);
  const bool needs_mix = static_cast<bool>(op.dmix);
  const GradientPair both(op.dx, op.add_dx, op.dx0, op.add_dx0);
  const Tensor first = op.dmix ? op.dmix.row_range(0, 1) : op.dmix,
               second = op.dmix ? op.dmix.row_range(1, 1) : op.dmix;
  const auto body = [=] __device__(const RowsOfThread& rows, int c, float(&sums)[2][V]) {
    float m0[V], m1[V];
    load_scale(mix, 0, c, m0);
    load_scale(mix, 1, c, m1);
    rows.each([&](std::int64_t row) {
      float g[V], a[V] = {}, b[V] = {}, earlier[V], earlier0[V];
      load(dy, row, c, g);
      if (needs_mix) {
        load(x, row, c, a);
        load(x0, row, c, b);
      }
      both.load(row, c, earlier, earlier0);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        sums[0][i] += g[i] * a[i];
        sums[1][i] += g[i] * b[i];
        a[i] = m0[i] * g[i];
        b[i] = m1[i] * g[i];
      }
      both.store(row, c, a, b, earlier, earlier0);
    });
  };
  for_columns_with_sums<V, 2>("residual_mix backward", stream, op.dy.rows, op.dy.cols, scratch,
                              {{View(first), View(second)}}, body);
}

void add_scaled_forward(const Context& context, const OpCall& call) {
  const AddScaled op(call);
  if (vectorized(op.x, {op.branch, op.scale, op.y}))
    add_scaled<kVector>(stream_of(context), op);
  else
    add_scaled<1>(stream_of(context), op);
}

void add_scaled_backward(const Context& context, const OpCall& call) {
  const AddScaled op(call);
  const auto in_registers = [&](auto packs) {
    add_scaled_gradient_rows<packs()>(stream_of(context), op, call.scratch.data);
  };
  const bool one_value = op.dx && op.dx.data == op.dbranch.data;
  if (!one_value && with_packs({op.branch, op.dy, op.dx, op.dbranch}, {op.scale}, in_registers)) return;
  if (vectorized(op.branch, {op.scale, op.dy, op.dx, op.dbranch}))
    add_scaled_gradients<kVector>(stream_of(context), op, call.scratch.data);
  else
    add_scaled_gradients<1>(stream_of(context), op, call.scratch.data);
}

void residual_mix_forward(const Context& context, const OpCall& call) {
  const ResidualMix op(call);
  if (vectorized(op.x, {op.x0, op.mix, op.y}))
    residual_mix<kVector>(stream_of(context), op);
  else
    residual_mix<1>(stream_of(context), op);
}

void residual_mix_backward(const Context& context, const OpCall& call) {
  const ResidualMix op(call);
  if (vectorized(op.x, {op.x0, op.mix, op.dy, op.dx, op.dx0}))
    residual_mix_gradients<kVector>(stream_of(context), op, call.scratch.data);
  else
    residual_mix_gradients<1>(stream_of(context), op, call.scratch.data);
}

// sigmoid(gate), and 1 - sigmoid(gate) without cancellation.
struct Share {
  float g, rest;

  __device__ explicit Share(float gate) {
    const float power = expf(-fabsf(gate)), large = 1 / (1 + power), small = power * large;
    g = gate >= 0 ? large : small;
    rest = gate >= 0 ? small : large;
  }
};

template <int V>
void gated_skip(cudaStream_t stream, const GatedSkip& op) {
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
void gated_skip_gradients(cudaStream_t stream, const GatedSkip& op, void* scratch) {
  const View x(op.x), skip(op.skip), w(op.w), gate(op.gate), dy(op.dy);
  const bool needs_sums = op.dw || op.dgate;
  const GradientPair both(op.dx, op.add_dx, op.dskip, op.add_dskip);
  const auto body = [=] __device__(const RowsOfThread& rows, int c, float(&sums)[2][V]) {
    float weight[V], s[V];
    load(w, 0, c, weight);
    load(gate, 0, c, s);
    rows.each([&](std::int64_t row) {
      float d[V], a[V] = {}, b[V] = {}, earlier[V], earlier_skip[V];
      load(dy, row, c, d);
      if (needs_sums) {
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

void gated_skip_forward(const Context& context, const OpCall& call) {
  const GatedSkip op(call);
  if (vectorized(op.x, {op.skip, op.w, op.gate, op.y}))
    gated_skip<kVector>(stream_of(context), op);
  else
    gated_skip<1>(stream_of(context), op);
}

void gated_skip_backward(const Context& context, const OpCall& call) {
  const GatedSkip op(call);
  if (vectorized(op.x, {op.skip, op.w, op.gate, op.dy, op.dx, op.dskip}))
    gated_skip_gradients<kVector>(stream_of(context), op, call.scratch.data);
  else
    gated_skip_gradients<1>(stream_of(context), op, call.scratch.data);
}

std::int64_t add_scaled_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  return column_sum_bytes(in[0].rows, in[0].cols, 1);
}

std::int64_t residual_mix_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  return column_sum_bytes(in[0].rows, in[0].cols, 2);
}

std::int64_t gated_skip_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  return column_sum_bytes(in[0].rows, in[0].cols, 2);
}

}  // namespace

extern const PluginOp kAddScaled = {"add_scaled",
                                    {.forward = add_scaled_forward,
                                     .backward = add_scaled_backward,
                                     .rows = kRowTypes,
                                     .wide_gradients = true,
                                     .scratch_bytes = add_scaled_scratch_bytes}};
extern const PluginOp kResidualMix = {"residual_mix",
                                      {.forward = residual_mix_forward,
                                       .backward = residual_mix_backward,
                                       .rows = kRowTypes,
                                       .wide_gradients = true,
                                       .scratch_bytes = residual_mix_scratch_bytes}};
extern const PluginOp kGatedSkip = {"gated_skip",
                                    {.forward = gated_skip_forward,
                                     .backward = gated_skip_backward,
                                     .rows = kRowTypes,
                                     .wide_gradients = true,
                                     .scratch_bytes = gated_skip_scratch_bytes}};

}  // namespace thimble::cuda
