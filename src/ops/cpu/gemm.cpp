#include "ops/cpu/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>

#include "base/error.h"
#include "base/parallel.h"
#include "tensor/arena.h"

namespace thimble::cpu {

namespace {

using dnnl::memory;

// From this many rows on, a bf16 product copies b into oneDNN's blocked layout. On Zen 4 the
// product is 3.5 % faster with it; including the copy, which is made for every product, the gain is
// 2 % for 2048 rows and 3 % for 8192.
constexpr std::int64_t kRowsWorthPacking = 2048;

memory::data_type data_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return memory::data_type::f32;
    case DType::bf16:
      return memory::data_type::bf16;
    default:
      fail("[gemm] expected f32 or bf16, got {}", dtype_name(dtype));
  }
}

memory::desc describe(const Operand& operand) {
  const std::int64_t pitch = std::max(operand.tensor.stride, operand.tensor.cols);
  const memory::dims strides = operand.transposed ? memory::dims{1, pitch} : memory::dims{pitch, 1};
  return {{operand.rows(), operand.cols()}, data_type(operand.tensor.dtype), strides};
}

memory::desc in_any_order(const memory::desc& desc) {
  return {desc.dims(), desc.data_type(), memory::format_tag::any};
}

// Everything a plan depends on.
using Key = std::array<std::int64_t, 14>;

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
          static_cast<std::int64_t>(b.tensor.dtype),
          static_cast<std::int64_t>(c.dtype),
          max_threads()};
}

void execute(const dnnl::primitive& primitive, const dnnl::stream& stream,
             std::initializer_list<dnnl_exec_arg_t> arguments) {
  // The C function: the C++ wrapper builds a map and a vector for every call.
  const auto count = static_cast<int>(arguments.size());
  dnnl::error::wrap_c_api(dnnl_primitive_execute(primitive.get(), stream.get(), count, std::data(arguments)),
                          "[gemm] oneDNN failed to run a primitive");
}

}  // namespace

struct Gemm::State {
  struct Plan {
    dnnl::matmul multiply;
    dnnl::reorder pack;  // empty: b is used in its own layout
    memory a, b, packed_b, c, bias, scratchpad;
    std::int64_t packed_bytes = 0;
  };

  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<Key, Plan> plans;
  Arena workspace;  // one product runs at a time: its packed b, then its scratchpad

  void reserve(std::int64_t bytes) {
    if (bytes > workspace.bytes()) workspace = Arena(bytes, "matrix products", "lower micro_batch");
  }
  Plan& plan_for(const Operand& a, const Operand& b, const Tensor& c, bool add, const Tensor& bias);
  Plan make_plan(const Operand& a, const Operand& b, const Tensor& c, bool add, const Tensor& bias);
};

Gemm::State::Plan Gemm::State::make_plan(const Operand& a, const Operand& b, const Tensor& c, bool add,
                                         const Tensor& bias) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const memory::desc a_desc = describe(a), b_desc = describe(b), c_desc = describe({c});
  const bool pack = b.tensor.dtype == DType::bf16 && a.rows() >= kRowsWorthPacking;
  const memory::desc b_layout = pack ? in_any_order(b_desc) : b_desc;
  const memory::desc bias_desc =
      bias ? memory::desc{{1, c.cols}, memory::data_type::f32, memory::dims{c.cols, 1}} : memory::desc{};
  const auto desc = bias ? dnnl::matmul::desc(a_desc, b_layout, bias_desc, c_desc)
                         : dnnl::matmul::desc(a_desc, b_layout, c_desc);
  const dnnl::matmul::primitive_desc primitive(desc, attributes, engine);

  Plan plan;
  plan.multiply = dnnl::matmul(primitive);
  plan.a = memory(a_desc, engine, nullptr);
  plan.b = memory(b_desc, engine, nullptr);
  plan.c = memory(c_desc, engine, nullptr);
  if (bias) plan.bias = memory(bias_desc, engine, nullptr);
  plan.scratchpad = memory(primitive.scratchpad_desc(), engine, nullptr);
  if (primitive.weights_desc() != b_desc) {
    plan.packed_b = memory(primitive.weights_desc(), engine, nullptr);
    plan.pack = dnnl::reorder(plan.b, plan.packed_b);
    plan.packed_bytes = align_up(static_cast<std::int64_t>(primitive.weights_desc().get_size()), kAlignment);
  }
  const std::int64_t bytes =
      plan.packed_bytes + static_cast<std::int64_t>(primitive.scratchpad_desc().get_size());
  reserve(bytes);
  return plan;
}

Gemm::State::Plan& Gemm::State::plan_for(const Operand& a, const Operand& b, const Tensor& c, bool add,
                                         const Tensor& bias) {
  const Key key = key_of(a, b, c, add, bias);
  if (const auto known = plans.find(key); known != plans.end()) return known->second;
  return plans.emplace(key, make_plan(a, b, c, add, bias)).first->second;
}

Gemm::Gemm() : state_(std::make_unique<State>()) {}
Gemm::~Gemm() = default;

void Gemm::run(const Operand& a, const Operand& b, const Tensor& c, bool add, const Tensor& bias) {
  check(a.cols() == b.rows() && a.rows() == c.rows && b.cols() == c.cols,
        "[gemm] [{}, {}] times [{}, {}] does not give [{}, {}]", a.rows(), a.cols(), b.rows(), b.cols(),
        c.rows, c.cols);
  if (uses_packed_gemm(a.tensor.dtype)) {
    state_->reserve(packed_gemm_bytes(c.rows, c.cols, a.cols(), c.dtype));
    return packed_gemm(a, b, c, add, bias, state_->workspace.at(0));
  }
  if (add && a.transposed && !b.transposed && a.tensor.dtype == DType::bf16 && c.dtype == DType::f32 &&
      uses_outer_sum(b.rows(), a.rows(), b.cols())) {
    state_->reserve(outer_sum_bytes(b.rows(), a.rows(), b.cols()));
    return outer_sum(a.tensor, b.tensor, c, state_->workspace.at(0));
  }
  State::Plan& plan = state_->plan_for(a, b, c, add, bias);
  const dnnl::stream& stream = state_->stream;
  plan.a.set_data_handle(a.tensor.data);
  plan.b.set_data_handle(b.tensor.data);
  plan.c.set_data_handle(c.data);
  plan.scratchpad.set_data_handle(state_->workspace.at(plan.packed_bytes));
  if (plan.pack) {
    plan.packed_b.set_data_handle(state_->workspace.at(0));
    execute(plan.pack, stream, {{DNNL_ARG_FROM, plan.b.get()}, {DNNL_ARG_TO, plan.packed_b.get()}});
  }
  const dnnl_exec_arg_t source = {DNNL_ARG_SRC, plan.a.get()}, result = {DNNL_ARG_DST, plan.c.get()};
  const dnnl_exec_arg_t weights = {DNNL_ARG_WEIGHTS, (plan.pack ? plan.packed_b : plan.b).get()};
  const dnnl_exec_arg_t scratchpad = {DNNL_ARG_SCRATCHPAD, plan.scratchpad.get()};
  if (bias) {
    plan.bias.set_data_handle(bias.data);
    execute(plan.multiply, stream, {source, weights, result, scratchpad, {DNNL_ARG_BIAS, plan.bias.get()}});
  } else {
    execute(plan.multiply, stream, {source, weights, result, scratchpad});
  }
  state_->stream.wait();
}

std::int64_t training_workspace(DType dtype, std::int64_t rows, std::int64_t outputs, std::int64_t inputs) {
  if (uses_packed_gemm(dtype))
    return std::max({packed_gemm_bytes(rows, outputs, inputs, dtype),
                     packed_gemm_bytes(rows, inputs, outputs, dtype),
                     packed_gemm_bytes(outputs, inputs, rows, DType::f32)});
  if (dtype != DType::bf16) return 0;  // negligible
  if (uses_outer_sum(rows, outputs, inputs)) return outer_sum_bytes(rows, outputs, inputs);
  return rows * inputs * static_cast<std::int64_t>(sizeof(bf16));  // packed for oneDNN
}

namespace {

dnnl_cpu_isa_t onednn_cap(CpuLevel level) {
  switch (level) {
    case CpuLevel::scalar:
      return dnnl_cpu_isa_sse41;
    case CpuLevel::avx2:
      return dnnl_cpu_isa_avx2;
    case CpuLevel::avx512:
      return dnnl_cpu_isa_avx512_core;
    case CpuLevel::avx512_bf16:
      return dnnl_cpu_isa_avx512_core_bf16;
    case CpuLevel::amx:
      break;
  }
  return dnnl_cpu_isa_all;
}

}  // namespace

void cap_onednn(CpuLevel level) {
  dnnl_set_max_cpu_isa(onednn_cap(level));
}

CpuLevel onednn_level() {
  switch (dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_avx512_core_amx:
      return CpuLevel::amx;
    case dnnl_cpu_isa_avx512_core_bf16:
      return CpuLevel::avx512_bf16;
    case dnnl_cpu_isa_avx512_core_vnni:
    case dnnl_cpu_isa_avx512_core:
      return CpuLevel::avx512;
    case dnnl_cpu_isa_avx2_vnni:
    case dnnl_cpu_isa_avx2:
      return CpuLevel::avx2;
    default:
      return CpuLevel::scalar;
  }
}

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("{}.{}.{}", version->major, version->minor, version->patch);
}

namespace {

template <class Work>
double best_seconds(int repeats, Work work) {
  work();  // warm up: create plans, touch pages
  double best = 1e300;
  for (int i = 0; i < repeats; ++i) {
    const auto started = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - started;
    best = std::min(best, taken.count());
  }
  return best;
}

double seconds_of_product(const Context& context, const ProductShape& shape, std::int64_t N, DType dtype,
                          int repeats) {
  const std::int64_t O = shape.outputs, I = shape.inputs;
  const std::int64_t wide = align_up((N * (O + I) + O * I) * dtype_bytes(dtype));
  const Arena arena(wide + align_up(O * I * 4) + 4 * kAlignment, "benchmark matrices", "measure fewer rows");
  std::int64_t offset = 0;
  const auto matrix = [&](std::int64_t rows, std::int64_t cols, DType type) {
    const Tensor tensor{arena.at(offset), rows, cols, cols, type, Device::cpu};
    offset += align_up(rows * cols * dtype_bytes(type));
    return tensor;
  };
  const Tensor dw = matrix(O, I, DType::f32), x = matrix(N, I, dtype), y = matrix(N, O, dtype);
  const Tensor w = matrix(O, I, dtype);
  Gemm& gemm = context.state<Gemm>();
  return best_seconds(repeats, [&] { gemm.run({x}, transposed(w), y, false); }) +
         best_seconds(repeats, [&] { gemm.run({y}, {w}, x, false); }) +
         best_seconds(repeats, [&] { gemm.run(transposed(y), {x}, dw, true); });
}

}  // namespace

double seconds_of_products(const Context& context, std::span<const ProductShape> shapes, std::int64_t N,
                           DType dtype, int repeats) {
  double seconds = 0;
  for (const ProductShape& shape : shapes)
    seconds += shape.count * seconds_of_product(context, shape, N, dtype, repeats);
  return seconds;
}

}  // namespace thimble::cpu

namespace thimble {

double flops_of_products(std::span<const ProductShape> shapes, std::int64_t N) {
  double flops = 0;
  for (const ProductShape& shape : shapes)
    flops += shape.count * 6 * static_cast<double>(N) * static_cast<double>(shape.outputs) *
             static_cast<double>(shape.inputs);
  return flops;
}

}  // namespace thimble
