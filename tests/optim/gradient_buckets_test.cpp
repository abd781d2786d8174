#include "optim/gradient_buckets.h"

#include <map>

#include "base/error.h"
#include "base/rng.h"
#include "config/builder.h"
#include "dist/recording.h"
#include "dist/thread_transport.h"
#include "optim/optimizer.h"

namespace thimble {
namespace {

Config tiny(const std::string& preset, const std::vector<std::string>& settings = {}) {
  ConfigBuilder builder;
  builder.preset(preset);
  for (const char* setting : {"vocab_size=31", "layers=3", "dim=32", "heads=2", "kv_heads=1", "context=16",
                              "batch_tokens=64", "muon_dtype=f32"})
    builder.set(setting);
  for (const std::string& setting : settings) builder.set(setting);
  return builder.resolve();
}

Rows some_rows(const Config& config, std::uint64_t seed) {
  Rng random(7, 0, seed);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(2 * config.model.context));
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random.below(31));
  return grid_rows(config.model, config.model.context, tokens, tokens);
}

struct InitializedModel {
  explicit InitializedModel(Config made) : config(std::move(made)) {
    initialize(model.params(), 1, model.weights());
    model.weights_changed();
  }
  Config config;
  Context context;
  Model model{config.model, context};
};

class GradientBuckets : public testing::TestWithParam<const char*> {};

// The central guarantee: no step after after_step adds to the bucket.
TEST_P(GradientBuckets, AreCompleteAfterTheirStepAndContainEveryGradientOnce) {
  for (const GradientOptions base :
       {GradientOptions{}, GradientOptions{.recompute = true}, GradientOptions{.qat_bits = 6}}) {
    InitializedModel made(tiny(GetParam()));
    const Rows rows = some_rows(made.config, 3);
    BoundProgram& program = made.model.training_program(rows.count(), base);
    const std::vector<GradientBucket> buckets = gradient_buckets(program, 1000);
    EXPECT_GT(buckets.size(), 5u);

    std::vector<float> gradients(made.model.weights().size());
    std::map<std::size_t, std::vector<float>> when_complete;  // by bucket
    const auto values_of = [&](const GradientBucket& bucket) {
      std::vector<float> values;
      for (const GradientRange& range : bucket.ranges)
        values.insert(values.end(), gradients.begin() + range.offset,
                      gradients.begin() + range.offset + range.count);
      return values;
    };
    const Program::AfterStep after_step = [&](int step) {
      for (std::size_t i = 0; i < buckets.size(); ++i)
        if (buckets[i].after_step == step) when_complete[i] = values_of(buckets[i]);
    };
    GradientOptions options = base;
    options.after_step = &after_step;
    made.model.add_gradients(rows, gradients, options);

    std::vector<int> times(gradients.size());  // how many buckets contain each value
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      EXPECT_EQ(when_complete[i], values_of(buckets[i])) << "bucket " << i;
      EXPECT_LE(i > 0 ? buckets[i - 1].after_step : 0, buckets[i].after_step);
      std::int64_t floats = 0;
      for (const GradientRange& range : buckets[i].ranges) {
        floats += range.count;
        for (std::int64_t k = 0; k < range.count; ++k) ++times[static_cast<std::size_t>(range.offset + k)];
      }
      EXPECT_EQ(floats, i + 1 < buckets.size() ? 1000 : floats);
    }
    for (std::size_t at = 0; at < gradients.size(); ++at)
      ASSERT_TRUE(times[at] == 1 || (times[at] == 0 && gradients[at] == 0)) << at;
    EXPECT_LT(buckets.front().after_step, buckets.back().after_step) << "no bucket is ready early";
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, GradientBuckets, testing::Values("quick", "golf", "golf-plus", "llama"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(GradientSums, EveryRankStartsTheSameSumsInTheSameOrder) {
  std::vector<std::vector<std::string>> calls;
  for (const int rank : {0, 3}) {
    InitializedModel made(tiny("golf"));
    RecordingCommunicator ranks(rank, 4);
    std::vector<float> gradients(made.model.weights().size());
    GradientSums sums(ranks, gradients);
    // Ranks may have different rows.
    const Rows rows = some_rows(made.config, static_cast<std::uint64_t>(rank));
    BoundProgram& program = made.model.training_program(rows.count(), {});
    made.model.add_gradients(rows, gradients, {.after_step = &sums.begin(program, "step 1")});
    sums.wait();
    calls.push_back(ranks.calls);
  }
  EXPECT_EQ(calls[0], calls[1]);
  ASSERT_GE(calls[0].size(), 2u);
  EXPECT_EQ(calls[0].front().substr(0, 4), "sum ");
  EXPECT_EQ(calls[0].back().substr(0, 5), "wait:");
}

TEST(GradientSums, WaitWithoutBackwardIsAnError) {
  InitializedModel made(tiny("golf"));
  RecordingCommunicator ranks(0, 2);
  std::vector<float> gradients(made.model.weights().size());
  GradientSums sums(ranks, gradients);
  sums.begin(made.model.training_program(32, {}), "step 1");
  EXPECT_THROW(sums.wait(), Error);
}

// Each rank orthogonalizes some of the matrices and receives the others. The result must equal that
// of a single rank bit for bit.
TEST(MuonOnRanks, UpdatesMatchOneRankBitForBit) {
  const Config config = tiny("golf", {"muon_weight_decay=0.1", "clip=0.5"});
  const auto trained = [&](Communicator* ranks) {
    InitializedModel made(config);
    Optimizer optimizer(made.model.params(), config.optimizer);
    if (ranks) optimizer.share_over(*ranks);
    std::vector<float> gradients(made.model.weights().size());
    for (int step = 0; step < 3; ++step) {
      Rng random(11, 0, static_cast<std::uint64_t>(step));
      for (float& g : gradients) g = static_cast<float>(random.below(1000)) * 1e-3f - 0.5f;
      optimizer.update(made.context, step, 1, made.model.weights(), gradients);
    }
    return std::vector<float>(made.model.weights().begin(), made.model.weights().end());
  };
  const std::vector<float> alone = trained(nullptr);
  for (const int size : {2, 3})
    on_threads(size, [&](Communicator& ranks) { EXPECT_EQ(trained(&ranks), alone) << size; });
}

TEST(MuonOnRanks, MatricesAreDividedEvenly) {
  const Config config = tiny("golf");
  InitializedModel made(config);
  Optimizer optimizer(made.model.params(), config.optimizer);
  std::map<int, int> matrices;
  for (const Optimizer::ActiveRule& active : optimizer.rules())
    for (const OwnedParam& owned : active.rule->owned(4)) ++matrices[owned.rank];
  ASSERT_EQ(matrices.size(), 4u);
  for (const auto& [rank, count] : matrices) EXPECT_NEAR(count, matrices[0], 1) << rank;
}

}  // namespace
}  // namespace thimble
