// Ops: an OpDefinition contains everything the engine needs to know about an op; an OpCall is one
// call of it.
//
// The tape, the scheduler, the planner and the generic tests use only definitions and know no op by
// name. ops/table.cpp lists the ops of the product; docs/design.md shows how to add one.
//
// Dimension letters: B batch, T time, N rows, C width, H heads, K kv heads, D head size,
// F mlp width, V vocabulary.
//
// Gradients: a backward kernel writes d_in[i] with `=`, or adds to it if adds(i) is true, which it
// always is for parameters. The gradient of an input is an empty tensor if it is not needed.
//
// Dtypes: activations are f32 or bf16, on CUDA also f16. The reference also supports f64 and c128,
// for checks. Matrices that are multiplied or looked up (weights, embedding tables) have the dtype
// of the activations; if that has 16 bits they are copies of the f32 masters, made in `prepare`.
// For inference they may be stored in other dtypes (ops/linear.h). Vectors (norm weights, biases,
// scales, gains, gates, rope's table) and statistics (1/rms, logsumexp, losses, row weights) are
// f32. Arithmetic and sums are f32; a result is rounded once, to nearest even, when it is stored.
// Gradients of parameters are f32. The gradient of an activation has the activation's dtype, or is
// f32 if more than two nodes read the activation. The tensors of one call may differ in this
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

// The settings of an op: any small plain struct.
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

// The arguments of a kernel. Each op's header names them:
// `RmsNorm op(call); op.x, op.y, op.dx ...`.
struct OpCall {
  std::span<const Tensor> in, out;
  std::span<const Tensor> d_out, d_in;  // empty spans in forward
  std::uint32_t add = 0;                // bit i: add to d_in[i]
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
// Returns the shapes of the outputs, and throws if the op does not accept the inputs.
using ShapeRule = std::vector<Shape> (*)(std::span<const Shape> in, const Attributes&);
using ScratchRule = std::int64_t (*)(std::span<const Shape> in, const Attributes&);

// A set of dtypes: bit i is set if it contains the DType with value i.
using DTypes = std::uint32_t;
constexpr DTypes dtypes(std::initializer_list<DType> list) {
  DTypes set = 0;
  for (const DType dtype : list) set |= 1u << static_cast<unsigned>(dtype);
  return set;
}

// The kernels of one op on one backend. Each is defined at the end of its kernels' source file.
struct Kernels {
  Kernel forward = nullptr;
  Kernel backward = nullptr;    // nullptr: the op supports inference only
  DTypes rows = 0;              // supported dtypes of input 0
  DTypes stored = 0;            // other dtypes of matrices that forward accepts
  bool wide_gradients = false;  // backward supports f32 gradients of narrower activations
  // For forward or backward with the current number of threads; nullptr: needs no scratch.
  ScratchRule scratch_bytes = nullptr;
};

// Properties of an input.
namespace is {
inline constexpr std::uint8_t differentiable = 1;      // may have a gradient
inline constexpr std::uint8_t parameter = 2;           // its gradient is f32 and always added to
inline constexpr std::uint8_t saved = 4;               // read by backward
inline constexpr std::uint8_t needed_in_training = 8;  // optional only in inference
inline constexpr std::uint8_t passes_gradient = 16;    // its gradient equals output 0's
}  // namespace is

struct OpInput {
  std::string_view name;
  std::uint8_t properties = 0;  // of namespace `is`
};

struct OpOutput {
  std::string_view name;
  bool saved = false;         // read by backward
  bool must_be_read = false;  // in training, backward needs its gradient
};

// Constant-initialized, so there is no registration and no initialization order.
struct OpDefinition {
  std::string_view name;
  std::array<OpInput, 8> inputs = {};
  std::array<OpOutput, 3> outputs = {};
  ShapeRule shapes = nullptr;
  // Scalar loops: the specification. Without backward, the op supports inference only.
  const Kernels* reference = nullptr;
  const Kernels* cpu = nullptr;  // CUDA kernels are in the plugin
  // The FLOPs of the matrix products of a call, forward or backward; nullptr: none.
  double (*flops)(const OpCall&) = nullptr;
  int multiplied_input = -1;  // the matrix that the rows of input 0 are multiplied by
  // Backward also computes the outputs and needs no d_out, so training skips forward.
  bool loss = false;
  bool straight_through = false;  // a copy of input 0 whose gradient is passed on unchanged

  bool input_is(std::size_t i, std::uint8_t property) const {
    return i < inputs.size() && (inputs[i].properties & property) != 0;
  }
  bool saves_output(std::size_t i) const { return i < outputs.size() && outputs[i].saved; }
};

// A kernel for several consecutive calls. In forward, output 0 of each call is input 0 of the next;
// in backward, the gradient of input 0 of each call is the gradient of output 0 of the next. In
// backward no other call reads that gradient.
using FusedKernel = void (*)(const Context&, std::span<const OpCall* const> calls);
inline constexpr std::size_t kMaxFused = 3;

struct FusedRun {
  std::array<std::string_view, kMaxFused> ops;  // names in call order; the last may be empty
  bool backward = false;
  FusedKernel kernel = nullptr;
};

// Where ops run. Immutable. Queried when a program is planned and bound, never per call.
struct Backend {
  std::string_view name;
  const Kernels* (*find)(const OpDefinition& op) = nullptr;  // nullptr: not supported
  std::span<const FusedRun* const> fused_runs = {};

  FusedKernel fused(std::span<const OpDefinition* const> ops, bool backward) const;  // nullptr: none
  std::int64_t scratch_bytes(const OpDefinition& op, std::span<const Shape> in,
                             const Attributes& attributes) const;
};

// Checks a call for all errors: shapes, dtypes, devices, outputs that overlap inputs, and kernels
// that the backend does not have. Runs once, when a schedule is bound to memory; kernels rely on
// it.
void validate_call(const OpDefinition& op, const Backend& backend, const OpCall& call);

// The work of one call, for profiles. It follows from the mathematical definition of the op, not
// from what a kernel does.
//
// flops: of matrix products, including only the causal half of attention; 0 for ops that only move
// memory.
// bytes: every input and output once, in backward also the gradients (twice if they are added to).
struct Work {
  double flops = 0, bytes = 0;
  Work& operator+=(const Work& other) {
    flops += other.flops;
    bytes += other.bytes;
    return *this;
  }
};
Work work_of(const OpDefinition& op, const OpCall& call);

// The full-precision dtype of the vectors, statistics and parameter gradients of an op whose rows
// have `dtype`.
constexpr DType statistic_dtype(DType dtype) {
  return dtype == DType::f64 || dtype == DType::c128 ? dtype : DType::f32;
}

}  // namespace thimble
