// Runs any op on any case, backend, number type and layout, and compares the results.
//
// Every tensor has its own memory, filled with 0xFF (NaN in f32 and f64). Reads outside a tensor
// therefore show in the results, and writes outside it in the guards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/op_cases.h"

namespace thimble {

// Elements between rows, and before the first (one element: no vector is aligned).
struct Layout {
  std::int64_t gap = 0, shift = 0;
  bool at_guard_page = false;  // a guard page follows the last element: reading past it crashes
};

class GuardedTensor {
 public:
  GuardedTensor() = default;  // absent
  GuardedTensor(const Shape& shape, Layout layout);

  const Tensor& tensor() const { return tensor_; }
  explicit operator bool() const { return static_cast<bool>(tensor_); }

  void write(const std::vector<double>& numbers);
  std::vector<double> read() const;            // real parts
  std::vector<double> read_imaginary() const;  // of c128
  void poison();                               // every element becomes 0xFF...
  bool guards_intact() const;                  // all bytes outside the elements are still 0xFF
  std::span<std::byte> memory() const { return {memory_.get(), bytes_}; }  // including guards

 private:
  template <class Visit>
  void visit(Visit visit_number) const;

  std::shared_ptr<std::byte[]> memory_;
  std::size_t bytes_ = 0;
  Tensor tensor_;
};

struct Conditions {
  Backend backend = reference_backend();
  DType dtype = DType::f64;
  Layout layout = {};
  int laid_out = -1;                   // the tensor with that layout (in, out, d_out, d_in) or -1
  std::uint32_t wide_d_out = 0;        // bit i: d_out[i] is f32 with bf16 rows
  std::uint32_t wide_d_in = 0;         // bit i: d_in[i] is f32 with bf16 rows
  std::uint32_t add = 0;               // bit i: d_in[i] is added to
  std::uint32_t requested = ~0u;       // bit i: d_in[i] is requested
  bool earlier_contents = false;       // gradients that are added to start with random numbers
  bool poison_unsaved = false;         // before backward, overwrite unsaved tensors
  Storing storing = Storing::as_rows;  // of the matrix
};

// The tensors of an op call. Outputs, and gradients that are not added to, start as NaN.
class BoundOp {
 public:
  BoundOp(const OpDefinition& def, const OpCase& op_case, const Conditions& conditions);

  void forward(const Context& context);
  void backward(const Context& context);

  // Public: tests reach into the tensors.
  std::vector<GuardedTensor> in, out, d_out, d_in;
  GuardedTensor scratch;

 private:
  void store_matrix(std::vector<Shape>& shapes);
  OpCall call(bool backward);
  void run(const Context& context, bool backward);
  void poison_unsaved();

  const OpDefinition& def_;
  const OpCase& case_;
  const Conditions conditions_;
  Attributes attributes_;
  std::vector<Tensor> in_, out_, d_out_, d_in_;
};

// The contents of d_in[i] before a backward that adds to it, with Conditions::earlier_contents.
std::vector<double> earlier_contents(const Values& input, std::size_t place);

// The tensors that a run writes, by name: "output 0", "state 5", "gradient of input 2".
struct Result {
  std::string name;
  std::vector<double> numbers;
};
using Results = std::vector<Result>;

// Runs forward, and backward if the case has one. A loss computes its outputs in backward too.
Results run_op(const OpDefinition& def, const OpCase& op_case, const Conditions& conditions,
               const Context& context);
Results run_op(const OpDefinition& def, const OpCase& op_case, const Conditions& conditions);
Results written(const OpDefinition& def, const BoundOp& op);

std::string gradient_name(std::size_t input);
Results gradients(Results results);  // only the gradients

inline const Conditions kReference = {};
inline const Conditions kCpu = {.backend = cpu_backend(), .dtype = DType::f32};

inline const Conditions kCpuBf16 = {.backend = cpu_backend(), .dtype = DType::bf16};

// The precisions of the op's CPU kernels: f32 and bf16.
std::vector<Conditions> cpu_precisions(const OpDefinition& def);

bool has_kernels(const OpDefinition& def, const Backend& backend, DType dtype = DType::f32);
bool has_backward(const OpDefinition& def, const OpCase& op_case);

// The same with the matrix stored in every other way; empty if the op takes no stored matrix.
std::vector<Conditions> stored_precisions(const OpDefinition& def);

// The error of `found` (defined in tolerances.h); infinity if a number is not finite.
double error_of(const std::vector<double>& expected, const std::vector<double>& found, double min_scale);
double one_minus_cosine(const std::vector<double>& expected, const std::vector<double>& found);

void expect_same_bits(const Results& expected, const Results& found);
void expect_close(const OpDefinition& def, const OpCase& op_case, DType dtype, const Results& expected,
                  const Results& found);
void expect_guards_intact(const BoundOp& op);

// The fixture of tests over the op table: one test per op and property, which loops over the cases.
class EveryOp : public ::testing::TestWithParam<Op> {
 protected:
  const OpDefinition& def() const { return *GetParam(); }
  const OpFacts& facts() const { return op_facts(GetParam()); }

  // Calls body(conditions, op_case) for every CPU precision and every case in it.
  template <class Body>
  void for_cpu_cases(Body body) const {
    for (const Conditions& cpu : cpu_precisions(def()))
      for (const OpCase& op_case : cases_in(GetParam(), cpu.dtype)) {
        SCOPED_TRACE(fmt::format("{} {}", dtype_name(cpu.dtype), op_case.name));
        body(cpu, op_case);
      }
  }

  // Also for every way to store the matrix.
  template <class Body>
  void for_stored_cases_too(Body body) const {
    for_cpu_cases(body);
    for (const Conditions& cpu : stored_precisions(def()))
      for (const OpCase& op_case : cases_stored(GetParam(), cpu.dtype, cpu.storing)) {
        SCOPED_TRACE(fmt::format("{} stored {} {}", dtype_name(cpu.dtype), static_cast<int>(cpu.storing),
                                 op_case.name));
        body(cpu, op_case);
      }
  }
};

// How gtest prints a parameter.
inline void PrintTo(Op op, std::ostream* out) {
  *out << op->name;
}

// Sets the number of OpenMP threads for a scope.
class Threads {
 public:
  explicit Threads(int count);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

}  // namespace thimble
