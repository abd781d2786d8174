// The op table: what the tape, the planner and the generic tests know about every op.
//
// An op is one row: its name, its shape rule (which is also its front door: everything wrong with inputs is
// refused there), kernels per backend, and what backward reads. Dimension letters: N rows, C width, H heads,
// K kv heads, D head size, F mlp width, V vocabulary.
//
// Gradients: every backward kernel writes d_in[i] with `=`, or adds to it where adds(i) says so (parameters:
// always). A gradient that nobody wants is an empty tensor.
//
// Dtypes: activations are f32 or bf16, on CUDA f16, too (f64, c128: the reference, for checks). Matrices that are
// multiplied or looked up (weights, embedding tables) have the dtype of the activations: beside 16 bits they are copies
// of the f32 masters, made in `prepare`; in inference they may be stored otherwise (stored.h). Vectors (norm weights,
// biases, scales, gains, gates, the turns of rope) and statistics (1/rms, logsumexp, losses, row weights) are f32.
// Arithmetic and sums are f32; a result is rounded once, to nearest even, when it is stored. Gradients of parameters are
// f32. Those of an activation have its dtype, or are f32 where it has many readers, each tensor of a call by itself
// (Kernels::wide_gradients).
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tensor/device.h"
#include "tensor/tensor.h"

namespace thimble {

enum class Op : std::uint8_t {
  embedding,
  smear,
  rmsnorm,
  layernorm,
  linear,
  rope,
  attention,
  exclusive_attention,
  cached_attention,
  activation,
  add_scaled,
  residual_mix,
  residual_norm,
  gated_skip,
  dropout,
  gather,
  softcap,
  head_loss,
  cast,
  fake_quant,
};
inline constexpr int kOps = static_cast<int>(Op::fake_quant) + 1;

// ref: scalar templates, the specification. cpu: Highway and oneDNN. cuda: filled in by the plugin.
enum class Backend : std::uint8_t { ref, cpu, cuda };
inline constexpr int kBackends = 3;

// The op's own settings: any small plain struct.
class Attributes {
 public:
  Attributes() = default;
  template <class T>
  requires(!std::is_same_v<T, Attributes>) Attributes(const T& value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kBytes);
    std::memcpy(bytes_, &value, sizeof(T));
  }
  template <class T>
  T as() const {
    T value;
    std::memcpy(&value, bytes_, sizeof(T));
    return value;
  }

 private:
  static constexpr std::size_t kBytes = 32;
  std::byte bytes_[kBytes] = {};
};

// What a kernel sees. Each op's header names the places: `RmsNorm op(call); op.x, op.y, op.dx ...`.
struct OpCall {
  std::span<const Tensor> in, out;
  std::span<const Tensor> d_out, d_in;  // empty spans in forward
  std::uint32_t add = 0;                // bit i: d_in[i] is added to
  Attributes attributes;
  Tensor scratch;  // u8 [1, scratch_bytes], contents undefined

  Tensor input(std::size_t i) const { return i < in.size() ? in[i] : Tensor{}; }
  Tensor output(std::size_t i) const { return i < out.size() ? out[i] : Tensor{}; }
  Tensor d_output(std::size_t i) const { return i < d_out.size() ? d_out[i] : Tensor{}; }
  Tensor d_input(std::size_t i) const { return i < d_in.size() ? d_in[i] : Tensor{}; }
  bool adds(std::size_t i) const { return (add >> i & 1u) != 0; }
};

using Kernel = void (*)(const Context&, const OpCall&);
using ShapeRule = std::vector<Shape> (*)(std::span<const Shape> in, const Attributes&);

// A set of dtypes: bit i is the DType of that number.
using DTypes = std::uint32_t;
constexpr DTypes dtypes(std::initializer_list<DType> list) {
  DTypes set = 0;
  for (const DType dtype : list) set |= 1u << static_cast<unsigned>(dtype);
  return set;
}

struct Kernels {
  Kernel forward = nullptr;
  Kernel backward = nullptr;    // nullptr: the op is for inference only
  DTypes rows = 0;              // dtypes of input 0 that they work in
  bool wide_gradients = false;  // backward takes and gives f32 gradients beside narrower activations
  DTypes stored = 0;            // dtypes of matrices that forward takes beside rows of another (stored.h)
};

struct OpDef {
  Op op;
  std::string_view name;
  ShapeRule shapes;              // shapes of the outputs; throws on anything it cannot take
  std::uint32_t differentiable;  // bit i: input i may have a gradient
  std::uint32_t parameters;      // bit i: input i is a parameter: its gradient is f32, and always added to
  std::uint32_t saved_inputs;    // bit i: backward reads input i
  std::uint32_t saved_outputs;   // bit i: backward reads output i
  Kernels kernels[kBackends];
  bool loss = false;  // backward computes the outputs too, and needs no d_out: forward is skipped in training
};

const OpDef& op_def(Op op);
std::span<const OpDef> all_ops();

// The plugin's kernels join the table when it is opened: once, before anything runs on the device.
void set_cuda_kernels(Kernels (*kernels)(Op));

// Bytes of scratch that the op's kernels of a backend want.
std::int64_t scratch_bytes(const OpDef& def, Backend backend, std::span<const Shape> in,
                           const Attributes& attributes);

// Everything that can be wrong with a call: shapes, dtypes, devices, outputs that overlap inputs, kernels that
// the backend does not have. Done once, when a schedule is bound to memory; kernels assume it.
void validate_call(const OpDef& def, Backend backend, const OpCall& call);

// What stands beside rows of a dtype in full precision: vectors, statistics, gradients of parameters.
constexpr DType statistic_dtype(DType dtype) {
  return dtype == DType::f64 || dtype == DType::c128 ? dtype : DType::f32;
}

}  // namespace thimble
