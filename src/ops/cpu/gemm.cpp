#include "ops/cpu/gemm.h"

#include <array>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"

namespace thimble::cpu {

namespace {

using dnnl::memory;

memory::data_type data_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return memory::data_type::f32;
    case DType::bf16:
      return memory::data_type::bf16;
    default:
      fail("[gemm] multiplies f32 or bf16, got {}", dtype_name(dtype));
  }
}

memory::desc describe(const Operand& operand) {
  const std::int64_t pitch = std::max(operand.tensor.stride, operand.tensor.cols);
  const memory::dims strides = operand.transposed ? memory::dims{1, pitch} : memory::dims{pitch, 1};
  return {{operand.rows(), operand.cols()}, data_type(operand.tensor.dtype), strides};
}

struct Plan {
  dnnl::matmul primitive;
  memory a, b, c, bias, scratchpad;
  std::vector<std::byte> scratch;
};

// All that a plan depends on.
using Key = std::array<std::int64_t, 13>;

Key key_of(const Operand& a, const Operand& b, const Tensor& c, bool add, const Tensor& bias) {
  return {a.rows(),
          a.cols(),
          b.cols(),
          a.tensor.stride,
          b.tensor.stride,
          c.stride,
          a.transposed,
          b.transposed,
          add,
          bias ? 1 : 0,
          static_cast<std::int64_t>(a.tensor.dtype),
          static_cast<std::int64_t>(c.dtype),
          max_threads()};
}

}  // namespace

struct Gemm::State {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<Key, Plan> plans;

  Plan& plan_for(const Operand& a, const Operand& b, const Tensor& c, bool add, const Tensor& bias);
};

Plan& Gemm::State::plan_for(const Operand& a, const Operand& b, const Tensor& c, bool add,
                            const Tensor& bias) {
  const Key key = key_of(a, b, c, add, bias);
  if (const auto known = plans.find(key); known != plans.end()) return known->second;
  Plan plan;

  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const memory::desc a_desc = describe(a), b_desc = describe(b), c_desc = describe({c});
  const memory::desc bias_desc =
      bias ? memory::desc{{1, c.cols}, memory::data_type::f32, memory::dims{c.cols, 1}} : memory::desc{};
  const auto desc = bias ? dnnl::matmul::desc(a_desc, b_desc, bias_desc, c_desc)
                         : dnnl::matmul::desc(a_desc, b_desc, c_desc);
  const dnnl::matmul::primitive_desc primitive(desc, attributes, engine);

  plan.primitive = dnnl::matmul(primitive);
  plan.a = memory(a_desc, engine, nullptr);
  plan.b = memory(b_desc, engine, nullptr);
  plan.c = memory(c_desc, engine, nullptr);
  if (bias) plan.bias = memory(bias_desc, engine, nullptr);
  plan.scratch.resize(primitive.scratchpad_desc().get_size());
  plan.scratchpad = memory(primitive.scratchpad_desc(), engine, plan.scratch.data());
  return plans.emplace(key, std::move(plan)).first->second;
}

Gemm::Gemm() : state_(std::make_unique<State>()) {}
Gemm::~Gemm() = default;

void Gemm::run(const Operand& a, const Operand& b, const Tensor& c, bool add, const Tensor& bias) {
  check(a.cols() == b.rows() && a.rows() == c.rows && b.cols() == c.cols,
        "[gemm] [{}, {}] times [{}, {}] does not give [{}, {}]", a.rows(), a.cols(), b.rows(), b.cols(),
        c.rows, c.cols);
  Plan& plan = state_->plan_for(a, b, c, add, bias);
  plan.a.set_data_handle(a.tensor.data);
  plan.b.set_data_handle(b.tensor.data);
  plan.c.set_data_handle(c.data);
  std::unordered_map<int, memory> arguments = {{DNNL_ARG_SRC, plan.a},
                                               {DNNL_ARG_WEIGHTS, plan.b},
                                               {DNNL_ARG_DST, plan.c},
                                               {DNNL_ARG_SCRATCHPAD, plan.scratchpad}};
  if (bias) {
    plan.bias.set_data_handle(bias.data);
    arguments.emplace(DNNL_ARG_BIAS, plan.bias);
  }
  plan.primitive.execute(state_->stream, arguments);
  state_->stream.wait();
}

}  // namespace thimble::cpu
