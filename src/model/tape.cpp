#include "model/tape.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "ops/attention.h"
#include "ops/cached_attention.h"
#include "ops/cast.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/exclusive_attention.h"
#include "ops/fake_quant.h"
#include "ops/head_loss.h"
#include "ops/layernorm.h"
#include "ops/linear.h"
#include "ops/residual.h"
#include "ops/rmsnorm.h"
#include "ops/rope.h"
#include "ops/softcap.h"

namespace thimble {

Value Tape::add_value(ValueInfo info) {
  values_.push_back(std::move(info));
  return {static_cast<int>(values_.size()) - 1};
}

Value Tape::input(std::string name, std::int64_t rows, std::int64_t cols) {
  return add_value({.shape = {rows, cols, dtype_}, .kind = ValueKind::input, .name = std::move(name)});
}

Value Tape::floats(std::string name, std::int64_t rows, std::int64_t cols) {
  return add_value(
      {.shape = {rows, cols, statistic_dtype(dtype_)}, .kind = ValueKind::input, .name = std::move(name)});
}

Value Tape::integers(std::string name, std::int64_t rows) {
  return add_value({.shape = {rows, 1, DType::i32}, .kind = ValueKind::input, .name = std::move(name)});
}

Value Tape::parameter(std::string name, std::int64_t rows, std::int64_t cols) {
  return add_value({.shape = {rows, cols, statistic_dtype(dtype_)},
                    .kind = ValueKind::parameter,
                    .name = std::move(name),
                    .wants_gradient = true});
}

Value Tape::state(std::string name, std::int64_t rows, std::int64_t cols) {
  return add_value({.shape = {rows, cols, dtype_}, .kind = ValueKind::state, .name = std::move(name)});
}

Value Tape::stored(std::string name, const Shape& shape) {
  return add_value({.shape = shape, .kind = ValueKind::parameter, .name = std::move(name)});
}

Value Tape::columns(Value x, std::int64_t begin, std::int64_t count) {
  const ValueInfo& whole = info(x);
  check(begin >= 0 && count > 0 && begin + count <= whole.shape.cols,
        "[tape] columns {} to {} of '{}', which has {}", begin, begin + count, whole.name, whole.shape.cols);
  check(whole.kind == ValueKind::activation && whole.parent < 0, "[tape] '{}' cannot be read by columns",
        whole.name);
  ValueInfo part = whole;
  part.shape.cols = count;
  part.parent = x.id;
  part.column = begin;
  part.name = fmt::format("{}[{}:{}]", whole.name, begin, begin + count);
  return add_value(std::move(part));
}

std::vector<Value> Tape::record(Op op, std::vector<Value> in, const Attributes& attributes) {
  const OpDef& def = op_def(op);
  while (!in.empty() && !in.back()) in.pop_back();
  std::vector<Shape> shapes;
  bool wants_gradient = false, prepare = !in.empty();
  for (std::size_t i = 0; i < in.size(); ++i) {
    shapes.push_back(in[i] ? info(in[i]).shape : Shape{});
    if (!in[i]) continue;
    const ValueInfo& from = info(in[i]);
    if ((def.differentiable >> i & 1u) != 0) wants_gradient |= from.wants_gradient;
    prepare &= from.kind == ValueKind::parameter ||
               (from.node >= 0 && nodes_[static_cast<std::size_t>(from.node)].prepare);
  }
  Node node{.op = op,
            .in = std::move(in),
            .out = {},
            .attributes = attributes,
            .segment = prepare ? -1 : segment_,
            .prepare = prepare};
  const int index = static_cast<int>(nodes_.size());
  const std::vector<Shape> outputs = def.shapes(shapes, attributes);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    node.out.push_back(add_value(
        {.shape = outputs[i],
         .kind = ValueKind::activation,
         .name = i == 0 ? fmt::format("{}.{}", def.name, index) : fmt::format("{}.{}.{}", def.name, index, i),
         .node = index,
         .wants_gradient = wants_gradient}));
  nodes_.push_back(std::move(node));
  return nodes_.back().out;
}

Value Tape::embedding(Value table, Value index, Value order, Value scales) {
  const bool stored = info(table).shape.dtype != dtype_;
  return record(Op::embedding, {table, index, order, scales}, EmbeddingAttributes{stored, dtype_})[0];
}

Value Tape::smear(Value x, Value gate, Value previous) {
  return record(Op::smear, {x, gate, previous})[0];
}

Value Tape::rmsnorm(Value x, Value weight, float eps, float scale) {
  return record(Op::rmsnorm, {x, weight}, RmsNormAttributes{eps, scale})[0];
}

Value Tape::layernorm(Value x, Value weight, Value bias, float eps) {
  return record(Op::layernorm, {x, weight, bias}, LayerNormAttributes{eps})[0];
}

Value Tape::linear(Value x, Value weight, Value bias, bool invariant, Value scales) {
  return record(Op::linear, {x, weight, bias, scales}, LinearAttributes{invariant})[0];
}

Value Tape::rope(Value x, Value position, Value turns, Value gain, Value weight, int heads, bool norm,
                 float eps) {
  return record(Op::rope, {x, position, turns, gain, weight}, RopeAttributes{heads, norm, eps})[0];
}

Value Tape::attention(Value q, Value k, Value v, Value first, int heads, int kv_heads, float scale) {
  return record(Op::attention, {q, k, v, first}, AttentionAttributes{heads, kv_heads, scale})[0];
}

Value Tape::exclusive_attention(Value y, Value v, int heads, int kv_heads) {
  return record(Op::exclusive_attention, {y, v}, ExclusiveAttributes{heads, kv_heads})[0];
}

Value Tape::cached_attention(Value q, Value k, Value v, Value slot, Value position, Value k_cache,
                             Value v_cache, int heads, int kv_heads, int context, float scale) {
  return record(Op::cached_attention, {q, k, v, slot, position, k_cache, v_cache},
                CachedAttentionAttributes{heads, kv_heads, context, scale})[0];
}

Value Tape::activation(Value x, ActivationKind kind) {
  return record(Op::activation, {x}, ActivationAttributes{kind})[0];
}

Value Tape::add_scaled(Value x, Value branch, Value scale, float factor) {
  return record(Op::add_scaled, {x, branch, scale}, AddScaledAttributes{factor})[0];
}

Value Tape::residual_mix(Value x, Value x0, Value mix) {
  return record(Op::residual_mix, {x, x0, mix})[0];
}

Tape::Residual Tape::residual_norm(Value x, Value branch, Value scale, Value weight, float eps,
                                   float norm_scale) {
  const auto out =
      record(Op::residual_norm, {x, branch, scale, weight}, ResidualNormAttributes{eps, norm_scale});
  return {out[0], out[1]};
}

Value Tape::gated_skip(Value x, Value skip, Value weight, Value gate) {
  return record(Op::gated_skip, {x, skip, weight, gate})[0];
}

Value Tape::dropout(Value x, Value seed, float p) {
  return record(Op::dropout, {x, seed}, DropoutAttributes{p, dropout_streams_++})[0];
}

Value Tape::gather(Value x, Value row) {
  return record(Op::gather, {x, row})[0];
}

Value Tape::softcap(Value x, float cap) {
  return record(Op::softcap, {x}, SoftcapAttributes{cap})[0];
}

Value Tape::head_loss(Value x, Value weight, Value target, Value row_weight, float cap, int chunk_rows,
                      Value scales) {
  return record(Op::head_loss, {x, weight, target, row_weight, scales},
                HeadLossAttributes{cap, chunk_rows})[0];
}

Value Tape::cast(Value x, DType to) {
  return record(Op::cast, {x}, CastAttributes{to})[0];
}

Value Tape::compute_copy(Value parameter, int bits) {
  check(info(parameter).kind == ValueKind::parameter, "[tape] '{}' is no parameter: only those are copied",
        info(parameter).name);
  if (bits > 0) return record(Op::fake_quant, {parameter}, FakeQuantAttributes{bits, dtype_})[0];
  return info(parameter).shape.dtype == dtype_ ? parameter : cast(parameter, dtype_);
}

Value Tape::name(Value value, std::string text) {
  values_[static_cast<std::size_t>(value.id)].name = std::move(text);
  return value;
}

}  // namespace thimble
