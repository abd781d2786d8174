#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/cached_attention.h"
#include "ops/cpu/kernels.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/exclusive_attention.h"
#include "ops/fake_quant.h"
#include "ops/gather.h"
#include "ops/head_loss.h"
#include "ops/layernorm.h"
#include "ops/linear.h"
#include "ops/ref/kernels.h"
#include "ops/residual.h"
#include "ops/rmsnorm.h"
#include "ops/rope.h"
#include "ops/smear.h"
#include "ops/softcap.h"

namespace thimble {

namespace {

constexpr std::uint32_t bits(std::initializer_list<int> places) {
  std::uint32_t mask = 0;
  for (int place : places) mask |= 1u << place;
  return mask;
}

OpDef row(Op op, std::string_view name, ShapeRule shapes, std::uint32_t differentiable,
          std::uint32_t saved_inputs, std::uint32_t saved_outputs) {
  return {op,
          name,
          shapes,
          differentiable,
          saved_inputs,
          saved_outputs,
          {ref::kernels(op), cpu::kernels(op), {}}};
}

std::array<OpDef, kOps> make_table() {
  // op, name, shape rule, inputs that have gradients, inputs and outputs that backward reads
  std::array<OpDef, kOps> table = {
      row(Op::embedding, "embedding", embedding_shapes, bits({0}), bits({1, 2}), 0),
      row(Op::smear, "smear", smear_shapes, bits({0, 1}), bits({0, 1, 2}), 0),
      row(Op::rmsnorm, "rmsnorm", rmsnorm_shapes, bits({0, 1}), bits({0, 1}), bits({1})),
      row(Op::layernorm, "layernorm", layernorm_shapes, bits({0, 1, 2}), bits({0, 1}), bits({1, 2})),
      row(Op::linear, "linear", linear_shapes, bits({0, 1, 2}), bits({0, 1}), 0),
      row(Op::rope, "rope", rope_shapes, bits({0, 3, 4}), bits({0, 1, 2, 3, 4}), bits({1})),
      row(Op::attention, "attention", attention_shapes, bits({0, 1, 2}), bits({0, 1, 2, 3}), bits({0, 1})),
      row(Op::exclusive_attention, "exclusive_attention", exclusive_attention_shapes, bits({0, 1}),
          bits({0, 1}), 0),
      row(Op::cached_attention, "cached_attention", cached_attention_shapes, 0, 0, 0),
      row(Op::activation, "activation", activation_shapes, bits({0}), bits({0}), 0),
      row(Op::add_scaled, "add_scaled", add_scaled_shapes, bits({0, 1, 2}), bits({1, 2}), 0),
      row(Op::residual_mix, "residual_mix", residual_mix_shapes, bits({0, 1, 2}), bits({0, 1, 2}), 0),
      row(Op::residual_norm, "residual_norm", residual_norm_shapes, bits({0, 1, 2, 3}), bits({1, 2, 3}),
          bits({0, 2})),
      row(Op::dropout, "dropout", dropout_shapes, bits({0}), bits({1}), 0),
      row(Op::gather, "gather", gather_shapes, bits({0}), bits({1}), 0),
      row(Op::softcap, "softcap", softcap_shapes, bits({0}), 0, bits({0})),
      row(Op::head_loss, "head_loss", head_loss_shapes, bits({0, 1}), bits({0, 1, 2, 3}), 0),
      row(Op::fake_quant, "fake_quant", fake_quant_shapes, bits({0}), 0, 0),
  };
  table[static_cast<std::size_t>(Op::head_loss)].loss = true;
  return table;
}

}  // namespace

std::span<const OpDef> all_ops() {
  static const std::array<OpDef, kOps> table = make_table();
  return table;
}

const OpDef& op_def(Op op) {
  return all_ops()[static_cast<std::size_t>(op)];
}

std::int64_t scratch_bytes(const OpDef& def, Backend backend, std::span<const Shape> in,
                           const Attributes& attributes) {
  return backend == Backend::cpu ? cpu::scratch_bytes(def.op, in, attributes) : 0;
}

void validate_call(const OpDef& def, const OpCall& call) {
  std::vector<Shape> in;
  for (const Tensor& tensor : call.in) in.push_back(tensor.shape());
  const std::vector<Shape> expected = def.shapes(in, call.attributes);
  check(call.out.size() == expected.size(), "[{}] expected {} outputs, got {}", def.name, expected.size(),
        call.out.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Tensor& out = call.out[i];
    check(out.shape() == expected[i], "[{}] expected output {} to be {}, got {}", def.name, i,
          expected[i].text(), out.shape().text());
    check(out.stride >= out.cols, "[{}] output {} has rows {} apart, shorter than their {} columns", def.name,
          i, out.stride, out.cols);
    for (std::size_t j = 0; j < call.in.size(); ++j)
      check(!overlap(out, call.in[j]), "[{}] output {} overlaps input {}", def.name, i, j);
    for (std::size_t j = 0; j < i; ++j)
      check(!overlap(out, call.out[j]), "[{}] outputs {} and {} overlap", def.name, j, i);
  }
  for (std::size_t i = 0; i < call.d_out.size(); ++i)
    check(!call.d_out[i] || (i < call.out.size() && call.d_out[i].rows == call.out[i].rows &&
                             call.d_out[i].cols == call.out[i].cols),
          "[{}] gradient of output {} is {}, the output {}", def.name, i, call.d_out[i].shape().text(),
          expected[i].text());
  for (std::size_t i = 0; i < call.d_in.size(); ++i) {
    const Tensor& gradient = call.d_in[i];
    if (!gradient) continue;
    check((def.differentiable >> i & 1u) != 0, "[{}] input {} has no gradient", def.name, i);
    check(gradient.rows == call.in[i].rows && gradient.cols == call.in[i].cols,
          "[{}] gradient of input {} is {}, the input {}", def.name, i, gradient.shape().text(),
          call.in[i].shape().text());
    for (std::size_t j = 0; j < call.d_out.size(); ++j)
      check(!overlap(gradient, call.d_out[j]), "[{}] gradients of input {} and output {} overlap", def.name,
            i, j);
    for (std::size_t j = 0; j < call.in.size(); ++j)
      check(!overlap(gradient, call.in[j]), "[{}] gradient of input {} overlaps input {}", def.name, i, j);
  }
}

}  // namespace thimble
