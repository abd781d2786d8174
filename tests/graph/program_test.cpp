#include "graph/program.h"

#include <cmath>

#include "base/error.h"
#include "graph/tiny_model.h"
#include "ops/table.h"

namespace thimble::program_test {
namespace {

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
  return ab / std::sqrt(aa * bb);
}

TEST(Program, GradientsMatchCentralDifferences) {
  TinyModel model({.dtype = DType::f64, .backend = reference_backend()});
  model.run();
  const auto gradients = model.gradients;
  for (const auto& [name, gradient] : gradients)
    for (std::size_t i = 0; i < gradient.size(); i += 1 + gradient.size() / 7) {
      constexpr double kStep = 1e-6;  // f64: truncation about step^2, rounding about 1e-16 / step
      double& place = model.parameters[name][i];
      const double before = place;
      place = before + kStep;
      const double above = model.run();
      place = before - kStep;
      const double below = model.run();
      place = before;
      EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-8 * (1 + std::abs(gradient[i])))
          << name << "[" << i << "]";
    }
}

TEST(Program, CpuInF32MatchesTheReferenceInF64) {
  TinyModel reference({.dtype = DType::f64, .backend = reference_backend()}), cpu({});
  EXPECT_NEAR(cpu.run(), reference.run(), 1e-6);
  for (const auto& [name, gradient] : reference.gradients)
    EXPECT_GT(cosine(gradient, cpu.gradients[name]), 0.9999999) << name;
}

TEST(Program, RepeatedRunsGiveTheSameBits) {
  TinyModel model({.dropout = 0.3f});
  const double loss = model.run();
  const auto gradients = model.gradients;
  EXPECT_EQ(model.run(), loss);
  EXPECT_EQ(model.gradients, gradients);
  model.seed[0] = 78;
  EXPECT_NE(model.run(), loss) << "another seed drops other values";
}

TEST(Program, RecomputingGivesTheSameBits) {
  for (float dropout : {0.0f, 0.3f}) {
    TinyModel plain({.dropout = dropout}), recomputed({.recompute = true, .dropout = dropout});
    EXPECT_EQ(plain.run(), recomputed.run());
    EXPECT_EQ(plain.gradients, recomputed.gradients);
    EXPECT_LT(recomputed.program->plan().arena_bytes, plain.program->plan().arena_bytes);
  }
}

TEST(Program, ReusingMemoryGivesTheSameBits) {
  TinyModel reused({}), unshared({.keep_everything = true});
  EXPECT_EQ(reused.run(), unshared.run());
  EXPECT_EQ(reused.gradients, unshared.gradients);
  EXPECT_LT(reused.program->plan().arena_bytes, unshared.program->plan().arena_bytes);
}

TEST(Program, FakeQuantizedWeightsHaveStraightThroughGradients) {
  TinyModel model({.quantize = true}), plain({});
  EXPECT_NE(model.run(), plain.run());
  EXPECT_GT(cosine(model.gradients["blocks.0.qkv"], plain.gradients["blocks.0.qkv"]), 0.9);
  EXPECT_GT(model.program->plan().prepared_bytes, 0);
}

TEST(Program, RunsWithFewerRowsThanRecorded) {
  // 1025 rows are summed in 61 blocks, 1024 in 64: fewer rows may need more scratch.
  for (auto [recorded, bound] : {std::pair<std::int64_t, std::int64_t>{16, 10}, {1025, 1024}}) {
    TinyModel large({.rows = recorded}), small({.rows = bound});
    large.fill_rows(bound);
    EXPECT_EQ(large.run(), small.run());
    EXPECT_EQ(large.gradients, small.gradients);
  }
}

TEST(Program, ScoringGivesTheLossOfTraining) {
  TinyModel training({}), scoring({.training = false});
  EXPECT_EQ(training.run(), scoring.run());
  EXPECT_LT(scoring.program->plan().arena_bytes, training.program->plan().arena_bytes);
}

TEST(Program, LentMemoryGivesTheSameBitsAndMustBePreparedAgain) {
  TinyModel training({.quantize = true}), alone({.quantize = true, .training = false}),
      scoring({.quantize = true, .training = false, .lender = training.program.get()});
  const double loss = training.run();
  const auto gradients = training.gradients;
  EXPECT_TRUE(training.program->is_prepared());
  EXPECT_EQ(scoring.run(), alone.run());
  EXPECT_TRUE(scoring.program->is_prepared());
  EXPECT_FALSE(training.program->is_prepared()) << "the memory is shared";
  EXPECT_EQ(training.run(), loss);
  EXPECT_EQ(training.gradients, gradients);
  EXPECT_TRUE(alone.program->is_prepared()) << "has memory of its own";

  TinyModel large({.lender = alone.program.get()});
  large.run();
  EXPECT_TRUE(alone.program->is_prepared()) << "training does not fit into the memory of scoring";
}

TEST(Program, HookReceivesEveryActivationAndGradientByName) {
  TinyModel model({});
  std::map<std::string, int> forward, backward;
  model.program->set_hook([&](std::string_view name, Phase phase, const Tensor& tensor) {
    EXPECT_GT(tensor.rows, 0) << name;
    ++(phase == Phase::backward ? backward : forward)[std::string(name)];
  });
  model.run();
  EXPECT_EQ(forward.count("blocks.0"), 1u);
  EXPECT_EQ(forward.count("x0"), 1u);
  EXPECT_GE(backward.at("x0"), 2) << "both blocks write to it";
  EXPECT_EQ(backward.count("tok_emb"), 1u);
}

TEST(Program, RefusesInvalidBindings) {
  TinyModel model({});
  Program& program = *model.program;
  std::vector<float> floats(1000);
  const auto message = [&](auto action) {
    try {
      action();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_EQ(message([&] { program.run(); }), "[program] 'tok_emb' is not bound");
  EXPECT_EQ(message([&] { program.bind(model.nats, make_tensor(floats.data(), 10, 1)); }),
            "[program] '" + program.tape().info(model.nats).name + "' is computed, not bound");
  EXPECT_NE(message([&] {
              program.bind(Value{0}, make_tensor(floats.data(), 10, 1));
            }).find("recorded as i32 [10, 1], got f32"),
            std::string::npos);
}

}  // namespace
}  // namespace thimble::program_test
