// Defines an op that is not part of the product in this file alone, and records, schedules, plans,
// runs and trains through it. docs/design.md shows the same definition.
#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "graph/program.h"
#include "ops/definition.h"
#include "ops/head_loss.h"
#include "ops/linear.h"
#include "ops/table.h"
#include "support/message_of.h"

namespace thimble::toy_op_test {
namespace {

// shifted_square: y = (x + shift)^2                    x, y [N, C]   shift [1, C]
//
// backward: dx <- 2 (x + shift) dy     dshift += sum over rows of 2 (x + shift) dy
struct ShiftedSquare {
  Tensor x, shift, y;
  Tensor dy, dx, dshift;
  bool add_dx;

  explicit ShiftedSquare(const OpCall& c)
      : x(c.input(0)),
        shift(c.input(1)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dx(c.d_input(0)),
        dshift(c.d_input(1)),
        add_dx(c.adds(0)) {}
};

std::vector<Shape> shifted_square_shapes(std::span<const Shape> in, const Attributes&) {
  const ShapeCheck c("shifted_square", in, 2, 2);
  const Shape& x = c.rows(0, "x");
  c.vector(1, "shift", x.cols);
  return {x};
}

struct ShiftedSquareFormula {
  using View = ShiftedSquare;

  template <class T>
  static void forward(const ShiftedSquare& op) {
    for (std::int64_t n = 0; n < op.x.rows; ++n)
      for (std::int64_t c = 0; c < op.x.cols; ++c) {
        const T sum = op.x.row<T>(n)[c] + op.shift.row<T>(0)[c];
        op.y.row<T>(n)[c] = sum * sum;
      }
  }

  template <class T>
  static void backward(const ShiftedSquare& op) {
    for (std::int64_t n = 0; n < op.x.rows; ++n)
      for (std::int64_t c = 0; c < op.x.cols; ++c) {
        const T g = T(2) * (op.x.row<T>(n)[c] + op.shift.row<T>(0)[c]) * op.dy.row<T>(n)[c];
        if (op.dx) store(op.dx.row<T>(n)[c], g, op.add_dx);
        if (op.dshift) op.dshift.row<T>(0)[c] += g;
      }
  }
};

// The reference is also used as the CPU kernels, which is how a new op may start.
constexpr OpDefinition kShiftedSquare = {
    .name = "shifted_square",
    .inputs = {{{"x", is::differentiable | is::saved},
                {"shift", is::differentiable | is::parameter | is::saved}}},
    .outputs = {{{.name = "y"}}},
    .shapes = shifted_square_shapes,
    .reference = &reference_kernels<ShiftedSquareFormula>,
    .cpu = &reference_kernels<ShiftedSquareFormula>};

Value shifted_square(Tape& tape, Value x, Value shift) {
  return tape.record(kShiftedSquare, {x, shift})[0];
}

constexpr std::int64_t kRows = 6, kInputs = 5, kWidth = 4, kClasses = 3;

// A classifier of rows (linear, shifted_square, head_loss) with all memory that the program is
// bound to.
struct ToyModel {
  explicit ToyModel(const Backend& backend, bool recompute = false) {
    Tape tape;
    x = tape.input("x", kRows, kInputs);
    w = tape.parameter("w", kWidth, kInputs);
    shift = tape.parameter("shift", 1, kWidth);
    head = tape.parameter("head", kClasses, kWidth);
    const Value target = tape.integers("target", kRows), weight = tape.floats("weight", kRows, 1);
    tape.segment(0);
    const Value hidden = shifted_square(tape, op::linear(tape, x, w), shift);
    tape.segment(-1);
    nats = op::head_loss(tape, hidden, head, target, weight, 0);
    program = std::make_unique<Program>(
        std::move(tape), ScheduleOptions{.training = true, .recompute = recompute, .keep = {nats}}, context,
        backend);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = 0.1f * static_cast<float>((static_cast<int>(i) * 7) % 11 - 5);
    for (std::size_t i = 0; i < rows.size(); ++i)
      rows[i] = 0.3f * static_cast<float>((static_cast<int>(i) * 5) % 9 - 4);
    program->bind(x, make_tensor(rows.data(), kRows, kInputs));
    program->bind(target, make_tensor(targets.data(), kRows, 1));
    program->bind(weight, make_tensor(weights.data(), kRows, 1));
    bind(w, 0, kWidth, kInputs);
    bind(shift, kWidth * kInputs, 1, kWidth);
    bind(head, kWidth * kInputs + kWidth, kClasses, kWidth);
  }

  void bind(Value parameter, std::int64_t offset, std::int64_t count, std::int64_t width) {
    program->bind(parameter, make_tensor(values.data() + offset, count, width));
    program->bind_gradient(parameter, make_tensor(gradients.data() + offset, count, width));
  }

  double loss() {
    gradients.assign(gradients.size(), 0.0f);
    program->prepare();
    program->run();
    double sum = 0;
    for (std::int64_t n = 0; n < kRows; ++n)
      sum += static_cast<double>(*program->tensor(nats).row<float>(n)) / static_cast<double>(kRows);
    return sum;
  }

  Context context;
  Value x, w, shift, head, nats;
  std::vector<float> values = std::vector<float>(kWidth * kInputs + kWidth + kClasses * kWidth);
  std::vector<float> gradients = std::vector<float>(values.size());
  std::vector<float> rows = std::vector<float>(kRows * kInputs);
  std::vector<float> weights = std::vector<float>(kRows, 1.0f / kRows);
  std::vector<std::int32_t> targets = {0, 1, 2, 0, 1, 2};
  std::unique_ptr<Program> program;
};

TEST(ToyOp, GradientsMatchCentralDifferences) {
  ToyModel model(reference_backend());
  model.loss();
  const std::vector<float> found = model.gradients;
  constexpr float kStep = 1e-2f;
  for (std::size_t i = 0; i < model.values.size(); ++i) {
    const float value = model.values[i];
    model.values[i] = value + kStep;
    const double above = model.loss();
    model.values[i] = value - kStep;
    const double below = model.loss();
    model.values[i] = value;
    EXPECT_NEAR(found[i], (above - below) / (2 * static_cast<double>(kStep)), 2e-4) << i;
  }
}

TEST(ToyOp, TrainsOnEveryBackendThatSupportsIt) {
  for (const Backend& backend : {reference_backend(), cpu_backend()}) {
    SCOPED_TRACE(backend.name);
    ToyModel model(backend);
    const double before = model.loss();
    for (int step = 0; step < 200; ++step) {
      model.loss();
      for (std::size_t i = 0; i < model.values.size(); ++i) model.values[i] -= 0.3f * model.gradients[i];
    }
    EXPECT_LT(model.loss(), 0.2 * before);
  }
}

TEST(ToyOp, RecomputingGivesTheSameBits) {
  ToyModel kept(cpu_backend()), recomputed(cpu_backend(), true);
  EXPECT_EQ(kept.loss(), recomputed.loss());
  EXPECT_EQ(kept.gradients, recomputed.gradients);
}

TEST(ToyOp, ShapeRuleRefusesInvalidShapes) {
  Tape tape;
  const Value x = tape.input("x", kRows, kWidth);
  EXPECT_EQ(message_of([&] { shifted_square(tape, x, tape.parameter("shift", 1, kWidth + 1)); }),
            "[shifted_square] expected shift of width 4, got 5");
}

// A backend without the op, such as the CUDA plugin of an older build.
TEST(ToyOp, IsRefusedByABackendWithoutIt) {
  const Backend bare = {.name = "bare", .find = [](const OpDefinition& op) {
                          return op.name == "shifted_square" ? nullptr : op.cpu;
                        }};
  EXPECT_EQ(message_of([&] { ToyModel(bare).loss(); }), "[shifted_square] has no kernel for this device");
}

}  // namespace
}  // namespace thimble::toy_op_test
