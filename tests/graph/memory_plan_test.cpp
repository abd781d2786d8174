#include "graph/memory_plan.h"

#include <random>

#include "base/error.h"
#include "graph/tape.h"
#include "ops/cast.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/head_loss.h"
#include "ops/linear.h"
#include "ops/residual.h"
#include "ops/table.h"
#include "tensor/arena.h"

namespace thimble {
namespace {

// x followed by `layers` linears with activations, each feeding the next.
Tape chain(int layers, bool loss = true) {
  Tape t;
  Value x = t.input("x", 32, 8);
  for (int i = 0; i < layers; ++i) {
    t.segment(i);
    x = op::activation(t, op::linear(t, x, t.parameter("w" + std::to_string(i), 8, 8)),
                       ActivationKind::relu2);
  }
  t.segment(-1);
  if (loss)
    op::head_loss(t, x, t.parameter("head", 5, 8), t.integers("target", 32), t.input("weight", 32, 1), 0);
  return t;
}

void expect_no_overlap(const Schedule& schedule, const MemoryPlan& plan) {
  for (std::size_t i = 0; i < schedule.buffers.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      const Buffer &a = schedule.buffers[i], &b = schedule.buffers[j];
      const bool together = a.kind == Buffer::Kind::prepared || b.kind == Buffer::Kind::prepared ||
                            (a.first <= b.last && b.first <= a.last);
      if (!together) continue;
      EXPECT_TRUE(plan.offsets[i] + a.shape.bytes() <= plan.offsets[j] ||
                  plan.offsets[j] + b.shape.bytes() <= plan.offsets[i])
          << i << " and " << j;
    }
  for (std::int64_t offset : plan.offsets) EXPECT_EQ(offset % kAlignment, 0);
}

TEST(Plan, LiveBuffersNeverOverlap) {
  for (bool recompute : {false, true})
    for (int layers : {1, 2, 5, 12}) {
      const Tape tape = chain(layers);
      const Schedule schedule = make_schedule(tape, {.training = true, .recompute = recompute, .keep = {}});
      expect_no_overlap(schedule, plan_memory(tape, schedule, cpu_backend()));
    }
}

TEST(Plan, LiveBuffersNeverOverlapForRandomLifetimes) {
  std::mt19937 random(1);
  const Tape tape = chain(1, false);
  for (int trial = 0; trial < 50; ++trial) {
    Schedule schedule;
    for (int i = 0; i < 40; ++i) {
      const int first = static_cast<int>(random() % 20);
      schedule.buffers.push_back({i % 10 == 0 ? Buffer::Kind::prepared : Buffer::Kind::activation, 0,
                                  Shape{1 + static_cast<std::int64_t>(random() % 100), 3, DType::f32}, first,
                                  first + static_cast<int>(random() % 6)});
    }
    expect_no_overlap(schedule, plan_memory(tape, schedule, cpu_backend()));
  }
}

TEST(Plan, InferenceMemoryDoesNotGrowWithLayers) {
  const auto arena = [](int layers) {
    const Tape tape = chain(layers, false);
    const Value last = tape.nodes().back().out[0];
    return plan_memory(tape, make_schedule(tape, {.training = false, .recompute = false, .keep = {last}}),
                       cpu_backend())
        .arena_bytes;
  };
  EXPECT_EQ(arena(4), arena(40));
}

TEST(Plan, RecomputingReducesActivationMemory) {
  const auto activations = [](bool recompute) {
    const Tape tape = chain(20);
    return plan_memory(tape, make_schedule(tape, {.training = true, .recompute = recompute, .keep = {}}),
                       cpu_backend());
  };
  const MemoryPlan plain = activations(false), recomputed = activations(true);
  EXPECT_LT(recomputed.arena_bytes - recomputed.scratch_bytes,
            (plain.arena_bytes - plain.scratch_bytes) * 7 / 10);
}

TEST(Plan, DescribesMemoryByKindInMebibytes) {
  const Tape tape = chain(3);
  const std::string text =
      describe(plan_memory(tape, make_schedule(tape, {.training = true, .recompute = false, .keep = {}}),
                           cpu_backend()),
               true);
  for (const char* kind : {"parameters", "gradients of parameters", "activations", "gradients of activations",
                           "scratch", "total", "MiB"})
    EXPECT_NE(text.find(kind), std::string::npos) << text;
}

TEST(Schedule, FirstWriterStoresAndLaterWritersAdd) {
  Tape t;
  const Value x = op::linear(t, t.input("x", 4, 8), t.parameter("w", 8, 8));
  const Value y = op::add_scaled(t, x, op::activation(t, x, ActivationKind::relu));  // x has two readers
  op::head_loss(t, y, t.parameter("head", 5, 8), t.integers("target", 4), t.input("weight", 4, 1), 0);
  const Schedule schedule = make_schedule(t, {.training = true, .recompute = false, .keep = {}});
  std::vector<std::pair<const OpDefinition*, std::uint32_t>> backward;
  for (const Step& step : schedule.steps)
    if (step.phase == Phase::backward)
      backward.push_back({t.nodes()[static_cast<std::size_t>(step.node)].op, step.add});
  const std::vector<std::pair<const OpDefinition*, std::uint32_t>> expected = {
      {&op::kHeadLoss, 0b10},   // dx is stored, the parameter's gradient is added to
      {&op::kAddScaled, 0b00},  // the first writer of both
      {&op::kActivation, 0b1},  // the second writer of dx
      {&op::kLinear, 0b10}};    // x is an input and has no gradient; w's is added to
  EXPECT_EQ(backward, expected);
}

// For a sum, dx = dy: both share a buffer unless their dtypes differ or x is added to itself.
TEST(Schedule, GradientOfASumSharesItsBuffer) {
  const auto shared = [](int readers, bool itself) {
    Tape t(DType::bf16);
    const auto copy = [&](const char* name, std::int64_t rows) {
      return op::compute_copy(t, t.parameter(name, rows, 8), 0);
    };
    const Value x = op::linear(
        t, op::embedding(t, copy("table", 5), t.integers("token", 4), t.integers("order", 4)), copy("w", 8));
    const Value y = op::add_scaled(t, x, itself ? x : op::activation(t, x, ActivationKind::relu));
    Value last = y;
    for (int i = 2; i < readers; ++i)
      last = op::residual_mix(t, last, x, t.parameter("mix" + std::to_string(i), 2, 8));
    op::head_loss(t, last, copy("head", 5), t.integers("target", 4), t.floats("weight", 4, 1), 0);
    for (const Step& step : make_schedule(t, {.training = true, .recompute = false, .keep = {}}).steps)
      if (step.phase == Phase::backward &&
          t.nodes()[static_cast<std::size_t>(step.node)].op == &op::kAddScaled)
        return step.d_in[0].buffer == step.d_out[0].buffer;
    return false;
  };
  EXPECT_TRUE(shared(2, false));
  EXPECT_FALSE(shared(2, true));
  EXPECT_FALSE(shared(3, false)) << "x has three readers and a wide gradient, y has one";
}

// Every rounding of a running sum costs accuracy, so with three or more readers it is f32.
TEST(Schedule, GradientsOfValuesWithManyReadersAreF32) {
  for (const int readers : {2, 3}) {
    Tape t(DType::bf16);
    const Value x = op::embedding(t, op::compute_copy(t, t.parameter("table", 5, 8), 0),
                                  t.integers("token", 4), t.integers("order", 4));
    Value y = op::add_scaled(t, x, x);
    if (readers == 3) y = op::add_scaled(t, y, x);
    op::head_loss(t, y, op::compute_copy(t, t.parameter("head", 5, 8), 0), t.integers("target", 4),
                  t.floats("weight", 4, 1), 0);
    for (const Buffer& buffer :
         make_schedule(t, {.training = true, .recompute = false, .keep = {}}).buffers) {
      if (buffer.kind != Buffer::Kind::gradient) continue;
      EXPECT_EQ(buffer.shape.dtype, buffer.value == x.id && readers == 3 ? DType::f32 : DType::bf16);
    }
  }
}

TEST(Schedule, RefusesTapesThatCannotBeTrained) {
  const auto message = [](const Tape& tape, const ScheduleOptions& options) {
    try {
      make_schedule(tape, options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(chain(1, false), {.training = true, .recompute = false, .keep = {}}),
            "[schedule] training needs a loss on the tape");

  Tape t;
  const Value x = op::linear(t, t.input("x", 4, 8), t.parameter("w", 8, 8));
  const Value half = t.columns(x, 0, 4);
  op::head_loss(t, half, t.parameter("head", 5, 4), t.integers("target", 4), t.input("weight", 4, 1), 0);
  EXPECT_EQ(message(t, {.training = true, .recompute = false, .keep = {}}),
            "[schedule] only 4 of the 8 columns of 'linear.0' are read");
}

TEST(Schedule, RefusesMissingInputsOfBackward) {
  const auto refused = [](const Tape& tape) {
    try {
      make_schedule(tape, {.training = true, .recompute = false, .keep = {}});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  Tape unsorted;
  const Value x = op::embedding(unsorted, unsorted.parameter("table", 5, 8), unsorted.integers("token", 4));
  op::head_loss(unsorted, x, unsorted.parameter("head", 5, 8), unsorted.integers("target", 4),
                unsorted.input("weight", 4, 1), 0);
  EXPECT_EQ(refused(unsorted), "[embedding] training needs `order`, which is missing");

  Tape unread;
  const Value y = op::linear(unread, unread.input("x", 4, 8), unread.parameter("w", 8, 8));
  const Value stream = op::residual_norm(unread, y, y, {}, {}, 1e-5f).stream;
  op::head_loss(unread, stream, unread.parameter("head", 5, 8), unread.integers("target", 4),
                unread.input("weight", 4, 1), 0);
  EXPECT_EQ(refused(unread), "[residual_norm] training needs `normed` to be read, and nothing reads it");
}

TEST(Tape, RefusesInvalidShapesWhileRecording) {
  Tape t;
  const Value x = t.input("x", 4, 8);
  EXPECT_THROW(op::linear(t, x, t.parameter("w", 8, 7)), Error);
  EXPECT_THROW(t.columns(x, 0, 4), Error) << "only computed values are read by columns";
  EXPECT_THROW(op::compute_copy(t, x, 8), Error);
}

}  // namespace
}  // namespace thimble
