#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/cached_attention.h"
#include "ops/cast.h"
#include "ops/cpu/kernels.h"
#include "ops/cuda_plugin.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/exclusive_attention.h"
#include "ops/fake_quant.h"
#include "ops/gated_skip.h"
#include "ops/gather.h"
#include "ops/head_loss.h"
#include "ops/kernel_choice.h"
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
          std::uint32_t parameters, std::uint32_t saved_inputs, std::uint32_t saved_outputs) {
  return {op,         name,         shapes,        differentiable,
          parameters, saved_inputs, saved_outputs, {ref::kernels(op), cpu::kernels(op), {}}};
}

std::array<OpDef, kOps> make_table() {
  apply_cpu_level();
  // op, name, shape rule, inputs that have gradients, those that are parameters, inputs and outputs that
  // backward reads
  std::array<OpDef, kOps> table = {
      row(Op::embedding, "embedding", embedding_shapes, bits({0}), bits({0}), bits({1, 2}), 0),
      row(Op::smear, "smear", smear_shapes, bits({0, 1}), bits({1}), bits({0, 1, 2}), 0),
      row(Op::rmsnorm, "rmsnorm", rmsnorm_shapes, bits({0, 1}), bits({1}), bits({0, 1}), bits({1})),
      row(Op::layernorm, "layernorm", layernorm_shapes, bits({0, 1, 2}), bits({1, 2}), bits({0, 1}),
          bits({1, 2})),
      row(Op::linear, "linear", linear_shapes, bits({0, 1, 2}), bits({1, 2}), bits({0, 1}), 0),
      row(Op::rope, "rope", rope_shapes, bits({0, 3, 4}), bits({3, 4}), bits({0, 1, 2, 3, 4}), bits({1})),
      row(Op::attention, "attention", attention_shapes, bits({0, 1, 2}), 0, bits({0, 1, 2, 3}), bits({0, 1})),
      row(Op::exclusive_attention, "exclusive_attention", exclusive_attention_shapes, bits({0, 1}), 0,
          bits({0, 1}), 0),
      row(Op::cached_attention, "cached_attention", cached_attention_shapes, 0, 0, 0, 0),
      row(Op::activation, "activation", activation_shapes, bits({0}), 0, bits({0}), 0),
      row(Op::add_scaled, "add_scaled", add_scaled_shapes, bits({0, 1, 2}), bits({2}), bits({1, 2}), 0),
      row(Op::residual_mix, "residual_mix", residual_mix_shapes, bits({0, 1, 2}), bits({2}), bits({0, 1, 2}),
          0),
      row(Op::residual_norm, "residual_norm", residual_norm_shapes, bits({0, 1, 2, 3}), bits({2, 3}),
          bits({1, 2, 3}), bits({0, 2})),
      row(Op::gated_skip, "gated_skip", gated_skip_shapes, bits({0, 1, 2, 3}), bits({2, 3}),
          bits({0, 1, 2, 3}), 0),
      row(Op::dropout, "dropout", dropout_shapes, bits({0}), 0, bits({1}), 0),
      row(Op::gather, "gather", gather_shapes, bits({0}), 0, bits({1}), 0),
      row(Op::softcap, "softcap", softcap_shapes, bits({0}), 0, 0, bits({0})),
      row(Op::head_loss, "head_loss", head_loss_shapes, bits({0, 1}), bits({1}), bits({0, 1, 2, 3}), 0),
      row(Op::cast, "cast", cast_shapes, bits({0}), 0, 0, 0),
      row(Op::fake_quant, "fake_quant", fake_quant_shapes, bits({0}), 0, 0, 0),
  };
  table[static_cast<std::size_t>(Op::head_loss)].loss = true;
  return table;
}

std::array<OpDef, kOps>& table() {
  static std::array<OpDef, kOps> rows = make_table();
  return rows;
}

}  // namespace

std::span<const OpDef> all_ops() {
  return table();
}

void set_cuda_kernels(Kernels (*kernels)(Op)) {
  for (OpDef& def : table()) def.kernels[static_cast<std::size_t>(Backend::cuda)] = kernels(def.op);
}

const OpDef& op_def(Op op) {
  return all_ops()[static_cast<std::size_t>(op)];
}

std::int64_t scratch_bytes(const OpDef& def, Backend backend, std::span<const Shape> in,
                           const Attributes& attributes) {
  switch (backend) {
    case Backend::cpu:
      return cpu::scratch_bytes(def.op, in, attributes);
    case Backend::cuda:
      return cuda_plugin().scratch_bytes(def.op, in, attributes);
    case Backend::ref:
      break;
  }
  return 0;
}

}  // namespace thimble
