// An op: one definition that says all there is to know about it, and calls of it.
//
// The tape, the scheduler, the planner and the generic tests ask definitions; nothing outside of ops/ knows an op by
// name. ops/table.cpp lists the product's ops; docs/design.md shows how to add one.
//
// Dimension letters: B batch, T time, N rows, C width, H heads, K kv heads, D head size, F mlp width, V vocabulary.
//
// Gradients: every backward kernel writes d_in[i] with `=`, or adds to it where adds(i) says so (parameters: always). A
// gradient that nobody wants is an empty tensor.
//
// Dtypes: activations are f32 or bf16, on CUDA also f16 (f64, c128: the reference, for checks). Matrices that are
// multiplied or looked up (weights, embedding tables) have the dtype of the activations: beside 16 bits they are copies
// of the f32 masters, made in `prepare`; in inference they may be stored otherwise (ops/linear.h). Vectors (norm weights,
// biases, scales, gains, gates, rope's table) and statistics (1/rms, logsumexp, losses, row weights) are f32. Arithmetic
// and sums are f32; a result is rounded once, to nearest even, when it is stored. Gradients of parameters are f32. Those
// of an activation have its dtype, or are f32 where it has many readers, each tensor of a call by itself
// (Kernels::wide_gradients).
#pragma once

#include <array>
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
  Tensor scratch;  // u8 [1, Kernels::scratch_bytes], contents undefined

  Tensor input(std::size_t i) const { return i < in.size() ? in[i] : Tensor{}; }
  Tensor output(std::size_t i) const { return i < out.size() ? out[i] : Tensor{}; }
  Tensor d_output(std::size_t i) const { return i < d_out.size() ? d_out[i] : Tensor{}; }
  Tensor d_input(std::size_t i) const { return i < d_in.size() ? d_in[i] : Tensor{}; }
  bool adds(std::size_t i) const { return (add >> i & 1u) != 0; }
  bool backward() const { return !d_in.empty(); }
};

using Kernel = void (*)(const Context&, const OpCall&);
// Shapes of the outputs. It is also the op's front door: it throws on inputs that the op cannot take.
using ShapeRule = std::vector<Shape> (*)(std::span<const Shape> in, const Attributes&);
using ScratchRule = std::int64_t (*)(std::span<const Shape> in, const Attributes&);

// A set of dtypes: bit i is the DType of that number.
using DTypes = std::uint32_t;
constexpr DTypes dtypes(std::initializer_list<DType> list) {
  DTypes set = 0;
  for (const DType dtype : list) set |= 1u << static_cast<unsigned>(dtype);
  return set;
}

// One op on one backend. Stands below its kernels.
struct Kernels {
  Kernel forward = nullptr;
  Kernel backward = nullptr;    // nullptr: the op is for inference only
  DTypes rows = 0;              // dtypes of input 0 that they work in
  DTypes stored = 0;            // dtypes of matrices that forward takes beside rows of another
  bool wide_gradients = false;  // backward takes and gives f32 gradients beside narrower activations
  ScratchRule scratch_bytes =
      nullptr;  // forward or backward, with as many threads as there are now; nullptr: none
};

// Properties of an input.
namespace is {
inline constexpr std::uint8_t differentiable = 1;      // it may have a gradient
inline constexpr std::uint8_t parameter = 2;           // its gradient is f32, and always added to
inline constexpr std::uint8_t saved = 4;               // backward reads it
inline constexpr std::uint8_t needed_in_training = 8;  // optional in inference alone
inline constexpr std::uint8_t passes_gradient = 16;  // its gradient is output 0's: both may lie in one memory
}  // namespace is

struct OpInput {
  std::string_view name;
  std::uint8_t properties = 0;  // of namespace `is`
};

struct OpOutput {
  std::string_view name;
  bool saved = false;         // backward reads it
  bool must_be_read = false;  // in training: backward needs its gradient
};

// Constant-initialised: no registration, no order of initialisation.
struct OpDefinition {
  std::string_view name;
  std::array<OpInput, 8> inputs = {};
  std::array<OpOutput, 3> outputs = {};
  ShapeRule shapes = nullptr;
  const Kernels* reference =
      nullptr;                   // scalar loops, the specification; without backward: for inference only
  const Kernels* cpu = nullptr;  // those of CUDA are the plugin's
  double (*flops)(const OpCall&) =
      nullptr;                // of the products of a call, forward or backward; nullptr: it has none
  int multiplied_input = -1;  // the matrix that the rows of input 0 are multiplied with
  bool loss =
      false;  // backward computes the outputs, too, and needs no d_out: forward is skipped in training
  bool straight_through = false;  // a copy of its input whose gradient is the input's

  bool input_is(std::size_t i, std::uint8_t property) const {
    return i < inputs.size() && (inputs[i].properties & property) != 0;
  }
  bool saves_output(std::size_t i) const { return i < outputs.size() && outputs[i].saved; }
};

// Calls in a row as one kernel: what the first makes (in backward: its gradient of input 0) is what the next reads as its
// input 0 (as its gradient of output 0). In backward nobody else reads it.
using FusedKernel = void (*)(const Context&, std::span<const OpCall* const> calls);
inline constexpr std::size_t kMostFused = 3;

struct FusedRun {
  std::array<std::string_view, kMostFused> ops;  // by name, in the order of the calls; the last may be empty
  bool backward = false;
  FusedKernel kernel = nullptr;
};

// Where ops run. Immutable; asked when a program is planned and bound, never per call.
struct Backend {
  std::string_view name;
  const Kernels* (*find)(const OpDefinition& op) = nullptr;  // nullptr: it has none
  std::span<const FusedRun* const> fused_runs = {};

  FusedKernel fused(std::span<const OpDefinition* const> ops, bool backward) const;  // nullptr: none
  std::int64_t scratch_bytes(const OpDefinition& op, std::span<const Shape> in,
                             const Attributes& attributes) const;
};

// Everything that can be wrong with a call: shapes, dtypes, devices, outputs that overlap inputs, kernels that
// the backend does not have. Done once, when a schedule is bound to memory; kernels assume it.
void validate_call(const OpDefinition& op, const Backend& backend, const OpCall& call);

// The work of one call, for profiles: what the mathematics asks for, not what a kernel happens to do.
//
// flops: of matrix products, attention's causal half included; 0 for ops that only move memory.
// bytes: every tensor once: inputs and outputs, in backward their gradients (twice where they are added to).
struct Work {
  double flops = 0, bytes = 0;
  Work& operator+=(const Work& other) {
    flops += other.flops;
    bytes += other.bytes;
    return *this;
  }
};
Work work_of(const OpDefinition& op, const OpCall& call);

// What stands beside rows of a dtype in full precision: vectors, statistics, gradients of parameters.
constexpr DType statistic_dtype(DType dtype) {
  return dtype == DType::f64 || dtype == DType::c128 ? dtype : DType::f32;
}

}  // namespace thimble
