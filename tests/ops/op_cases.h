// The test cases of every op (inputs, attributes, gradients of the outputs), and properties from
// its header that definitions do not contain.
//
// Numbers are doubles that are exact in f32, so f32, f64 and c128 use the same inputs; cases_in
// rounds them for bf16.
#pragma once

#include <cstdint>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/op.h"
#include "ops/table.h"

namespace thimble {

using Op = const OpDefinition*;

// All ops, by reference.
inline auto every_op() {
  return std::views::transform(all_ops(), [](Op op) -> const OpDefinition& { return *op; });
}

// One tensor of a case, row-major. dtype f32 means "the number type under test"; rows = 0: absent.
struct Values {
  Shape shape;
  std::vector<double> numbers;

  explicit operator bool() const { return shape.rows > 0; }
  bool integers() const { return !is_float(shape.dtype); }
};

struct OpCase {
  std::string name;  // "N=5 C=17 weight"
  std::vector<Values> in;
  Attributes attributes;
  bool inference = false;          // this form of the op has no backward
  int frozen = -1;                 // an input without a gradient: the stored matrix; -1: none
  bool large = false;              // crosses tiles and thread partitions; no complex step
  double min_scale = 0;            // minimum scale of relative errors, for results close to zero
  std::vector<Values> d_out = {};  // filled in by cases_in
};

struct OpFacts {
  std::uint32_t full = 0;            // inputs that are f32 with bf16 rows: vectors and statistics
  std::uint32_t graded_outputs = 1;  // outputs that have a gradient; the others are statistics
  std::uint32_t state = 0;           // inputs that forward writes (caches)
  int loss_weight = -1;              // for a loss: the input with the row weights
  bool spreads_nan = false;          // 0 * NaN in masked terms reaches other rows
  bool bits_for_any_threads = true;  // false: for the same number of threads
  std::uint32_t by_row = 0;          // inputs with one row per output row, if batch-invariant
  int matrix = -1, scales = -1;      // the input that may be stored, and the input for its scales
};

// Bit i: input i has the property.
constexpr std::uint32_t inputs_that_are(const OpDefinition& op, std::uint8_t property) {
  std::uint32_t mask = 0;
  for (std::size_t i = 0; i < op.inputs.size(); ++i)
    if (op.input_is(i, property)) mask |= 1u << i;
  return mask;
}

struct Tolerance {
  double forward = 0, gradient = 0;
  std::string_view reason = "an op without a tolerance must be exact";
};

// In units of one rounding of the result to bf16 or f16.
struct HalfTolerance {
  double forward = 1, gradient = 1;
  double gradient_in_f32 = 0;  // used instead if the gradient is f32
  std::string_view reason = "one rounding of the result";
};

struct OpRequest {
  std::vector<Shape> in;
  Attributes attributes;
};

// The test data of an op: one row in op_cases_test.cpp.
struct OpTestRow {
  Op op = nullptr;
  std::vector<OpCase> (*make_cases)() = nullptr;  // used by cases_in
  OpFacts facts = {};
  Tolerance f32 = {};  // against the reference in f64 (tolerances.h)
  HalfTolerance half = {};
  OpRequest good = {};  // a valid request
};

const OpTestRow& test_row(Op op);
inline const OpFacts& op_facts(Op op) {
  return test_row(op).facts;
}

// The op's cases with numbers that are exact in `dtype`, so every mixture of dtypes, and the
// reference in f64, use the same inputs.
const std::vector<OpCase>& cases_in(Op op, DType dtype);

// How a case's matrix is stored (ops/linear.h): in the dtype of the rows, in fewer bits, or as
// integers with a scale per row or per 32 columns.
enum class Storing : std::uint8_t { as_rows, bf16, f16, i8_rows, i8_blocks };

// The scale of an element, a power of two, so that integer times scale is exact in every dtype.
inline double scale_of(Storing storing, std::int64_t row, std::int64_t col) {
  const std::int64_t block = storing == Storing::i8_blocks ? col / 32 : 0;
  return 1.0 / static_cast<double>(16 << (row + block) % 3);
}

// cases_in, with matrices that are exact in the storage format.
std::vector<OpCase> cases_stored(Op op, DType dtype, Storing storing);

constexpr bool has_bit(std::uint32_t mask, std::size_t place) {
  return (mask >> place & 1u) != 0;
}

}  // namespace thimble
