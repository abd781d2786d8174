// The host part of DeviceStep, tested on the CPU with plain kernels. The device part is tested in
// tests/cuda/step_test.cpp.
#include "optim/device_step.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/rng.h"
#include "config/builder.h"
#include "dist/recording.h"
#include "dist/thread_transport.h"
#include "optim/adam.h"
#include "optim/muon.h"
#include "optim/states_of.h"

namespace thimble {
namespace {

std::int64_t sum_scratch_bytes(std::int64_t) {
  return 8;
}

void add_weighted_sum(const Context&, const float* values, const float* weights, std::int64_t count,
                      double* total, std::byte*) {
  for (std::int64_t i = 0; i < count; ++i)
    *total += static_cast<double>(values[i]) * static_cast<double>(weights[i]);
}

void scale_rows(const Context&, const LossScale* scale, float* weights, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) weights[i] *= scale->scale;
}

void finish_norm(const Context&, const float* gradients, std::int64_t count, StepState* state,
                 LossScale* scale, std::byte*) {
  double squares = 0;
  for (std::int64_t i = 0; i < count; ++i)
    squares += static_cast<double>(gradients[i]) * static_cast<double>(gradients[i]);
  const double unscale = scale ? 1.0 / static_cast<double>(scale->scale) : 1.0;
  state->loss *= unscale;
  state->norm = std::sqrt(squares) * unscale;
  state->grad_scale = static_cast<float>(std::min(1.0, state->clip / (state->norm + kClipEps)) * unscale);
  state->finite = std::isfinite(state->norm);
  if (!scale) return;
  *scale = next_loss_scale(*scale, state->finite != 0);
  state->loss_scale = scale->scale;
}

void adam(const Context&, const RuleCall& call) {
  if (!call.state->finite) return;
  const auto chunks =
      std::span(call.items_as<AdamChunk>(), static_cast<std::size_t>(call.count_of<AdamChunk>()));
  for (const AdamChunk& chunk : chunks)
    for (std::int64_t i = 0; i < chunk.count; ++i) {
      const AdamGroup& k = call.settings_as<AdamSettings>()->groups[chunk.group];
      const float g = call.memory.gradients[chunk.offset + i] * call.state->grad_scale;
      float &m = call.memory.states[0][chunk.m + i], &v = call.memory.states[1][chunk.v + i];
      m = k.beta1 * m + k.rest1 * g;
      v = k.beta2 * v + k.rest2 * g * g;
      float& w = call.memory.weights[chunk.offset + i];
      w = w * k.shrink + k.rate * (m / (std::sqrt(v * k.unbias2) + k.eps));
    }
}

std::int64_t muon_scratch_bytes(const RuleCall& call) {
  std::int64_t most = 0;
  for (const MuonBatch& batch : call.plan_as<MuonPlan>().batches)
    most = std::max(most, batch.rows * batch.cols * static_cast<std::int64_t>(sizeof(float)));
  return most;
}

void muon(const Context&, const RuleCall& call) {
  if (!call.state->finite) return;
  const auto& settings = *call.settings_as<MuonSettings>();
  const auto& plan = call.plan_as<MuonPlan>();
  for (const MuonBatch& batch : plan.batches) {
    const std::int64_t size = batch.rows * batch.cols;
    auto* u = reinterpret_cast<float*>(call.scratch);
    const double shape = std::max(1.0, static_cast<double>(batch.rows) / static_cast<double>(batch.cols));
    for (const MuonMatrix& matrix :
         std::span(call.items_as<MuonMatrix>() + batch.first, static_cast<std::size_t>(batch.count))) {
      for (std::int64_t i = 0; i < size; ++i) {
        const float g = call.memory.gradients[matrix.offset + i] * call.state->grad_scale;
        float& m = call.memory.states[0][matrix.m + i];
        m = settings.momentum * m + g;
        u[i] = g + settings.momentum * m;
      }
      ref::newton_schulz(make_tensor(u, batch.rows, batch.cols), static_cast<int>(plan.rounds.size()));
      const float keep = matrix.decays ? settings.shrink : 1.0f;
      for (std::int64_t i = 0; i < size; ++i) {
        float& w = call.memory.weights[matrix.offset + i];
        w = w * keep - settings.rate * static_cast<float>(std::sqrt(shape)) * u[i];
      }
    }
  }
}

constexpr RuleKernels kAdamKernels = {.rule = "adam", .settings_bytes = sizeof(AdamSettings), .update = adam};
constexpr RuleKernels kMuonKernels = {.rule = "muon",
                                      .settings_bytes = sizeof(MuonSettings),
                                      .scratch_bytes = muon_scratch_bytes,
                                      .update = muon};
constexpr const RuleKernels* kRules[] = {&kAdamKernels, &kMuonKernels};
constexpr StepKernels kKernels = {sum_scratch_bytes, add_weighted_sum, scale_rows, finish_norm, kRules};
constexpr std::array<std::uint64_t, 2> kSeeds = {1, 2};

Config tiny_golf(bool muon) {
  ConfigBuilder settings;
  settings.preset("golf");
  for (const char* setting :
       {"vocab_size=31", "layers=2", "dim=32", "heads=2", "kv_heads=1", "context=16", "clip=0.1",
        "weight_decay=0.1", "muon_weight_decay=0.2", "muon_dtype=f32", "batch_tokens=64"})
    settings.set(setting);
  settings.set(muon ? "muon_steps=5" : "muon_steps=0");
  return settings.resolve();
}

// Two micro-batches; every third step has only one, which is a different shape.
std::vector<Rows> batch_of(const Config& config, std::int64_t step) {
  std::vector<Rows> batch;
  Rng random(7, 0, static_cast<std::uint64_t>(step));
  for (std::int64_t m = 0; m < (step % 3 == 2 ? 1 : 2); ++m) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(2 * config.model.context));
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random.below(31));
    batch.push_back(grid_rows(config.model, config.model.context, tokens, tokens));
  }
  return batch;
}

struct Trained {
  Context context;
  Config config;
  Model model{config.model, context};
  Optimizer optimizer{model.params(), config.optimizer, context};
  std::vector<double> losses;

  explicit Trained(bool muon = false) : config(tiny_golf(muon)) {
    initialize(model.params(), 1, model.weights());
    model.weights_changed();
  }
  std::vector<float> weights() const { return {model.weights().begin(), model.weights().end()}; }
  std::vector<float> states() { return states_of(optimizer, model.params()); }
};

void train_with_optimizer(Trained& run, int steps) {
  std::vector<float> gradients(run.model.weights().size());
  for (int step = 0; step < steps; ++step) {
    std::ranges::fill(gradients, 0.0f);
    double loss = 0;
    for (const Rows& rows : batch_of(run.config, step)) loss += run.model.add_gradients(rows, gradients, {});
    run.optimizer.update(run.context, step, 0.5, run.model.weights(), gradients);
    run.model.weights_changed();
    run.losses.push_back(loss);
  }
}

template <class Between>
void train_queued(Trained& run, int steps, Between between) {
  DeviceStep device(run.context, kKernels, run.model, run.optimizer, run.config.train, false);
  for (int step = 0; step < steps; ++step) {
    const std::vector<Rows> batch = batch_of(run.config, step);
    device.queue({.step = step,
                  .multiplier = 0.5,
                  .options = {},
                  .micro_batches = batch,
                  .dropout_seeds = std::span(kSeeds).first(batch.size())});
    between(batch);
  }
  EXPECT_EQ(device.steps_in_flight(), static_cast<std::size_t>(steps));
  for (int step = 0; step < steps; ++step) {
    const StepOutcome outcome = device.oldest();
    EXPECT_EQ(outcome.step, step);
    EXPECT_TRUE(outcome.updated);
    run.losses.push_back(outcome.loss);
  }
  EXPECT_FALSE(device.finished());
}

void expect_near(const Trained& expected, const Trained& found) {
  ASSERT_EQ(expected.losses.size(), found.losses.size());
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(expected.losses[i], found.losses[i], 1e-5) << "step " << i;
  const std::vector<float> a = expected.weights(), b = found.weights();
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 3e-5f) << "weight " << i;
}

TEST(QueuedStep, MatchesTheOptimizer) {
  for (const bool muon : {false, true}) {
    Trained expected(muon), found(muon);
    train_with_optimizer(expected, 7);
    train_queued(found, 7, [](const std::vector<Rows>&) {});
    expect_near(expected, found);
  }
}

// Computes in f32 with a config that specifies f16. The scale is a power of two, so it must cancel
// exactly.
void train_scaled(Trained& run, int first, int last, int poisoned = -1) {
  run.config.train.dtype = ComputeDType::f16;
  DeviceStep device(run.context, kKernels, run.model, run.optimizer, run.config.train, false);
  for (int step = first; step < last; ++step) {
    std::vector<Rows> batch = batch_of(run.config, step);
    if (step == poisoned) batch[0].weight[3] = std::numeric_limits<float>::infinity();
    device.queue({.step = step,
                  .multiplier = 0.5,
                  .options = {},
                  .micro_batches = batch,
                  .dropout_seeds = std::span(kSeeds).first(batch.size())});
    const StepOutcome outcome = device.oldest();
    EXPECT_EQ(outcome.updated, step != poisoned);
    run.losses.push_back(outcome.loss);
    device.fetch_loss_scale();
    EXPECT_EQ(outcome.loss_scale, static_cast<double>(run.optimizer.loss_scale().scale));
  }
}

TEST(QueuedStep, ScaledLossGivesTheSameBits) {
  for (const bool muon : {false, true}) {
    Trained plain(muon), scaled(muon);
    train_queued(plain, 7, [](const std::vector<Rows>&) {});
    train_scaled(scaled, 0, 7);
    EXPECT_EQ(plain.losses, scaled.losses);
    EXPECT_EQ(plain.weights(), scaled.weights());
    EXPECT_EQ(scaled.optimizer.loss_scale(), (LossScale{kInitialLossScale, 7}));
  }
}

TEST(QueuedStep, OverflowSkipsTheStepAndHalvesTheScale) {
  for (const bool muon : {false, true}) {
    Trained run(muon);
    train_scaled(run, 0, 3);
    const std::vector<float> weights = run.weights();
    const std::vector<float> states = run.states();
    train_scaled(run, 3, 4, 3);
    EXPECT_EQ(run.weights(), weights);
    EXPECT_EQ(run.states(), states);
    EXPECT_EQ(run.optimizer.loss_scale(), (LossScale{kInitialLossScale / 2, 0}));
    train_scaled(run, 4, 6);
    EXPECT_NE(run.weights(), weights);
    EXPECT_TRUE(std::isfinite(run.losses.back()));
    EXPECT_EQ(run.optimizer.loss_scale(), (LossScale{kInitialLossScale / 2, 2}));
  }
}

TEST(QueuedStep, LossScaleContinuesInANewDeviceStep) {
  Trained run;
  run.optimizer.loss_scale() = {1024, kGrowthSteps - 1};
  train_scaled(run, 0, 1);
  EXPECT_EQ(run.optimizer.loss_scale(), (LossScale{2048, 0}));
  train_scaled(run, 1, 3);  // a new DeviceStep
  EXPECT_EQ(run.optimizer.loss_scale(), (LossScale{2048, 2}));
}

// A validation or trace between two steps runs the same programs with other gradients.
TEST(QueuedStep, OtherGradientsOfTheModelDoNotInterfere) {
  Trained expected, found;
  train_with_optimizer(expected, 4);
  std::vector<float> others(found.model.weights().size());
  train_queued(found, 4,
               [&](const std::vector<Rows>& batch) { found.model.add_gradients(batch[0], others, {}); });
  expect_near(expected, found);
}

TEST(QueuedStep, RefusesMoreRowsThanTheProgramHas) {
  Trained run;
  const Rows rows = batch_of(run.config, 0)[0];
  const BoundProgram& fits = run.model.training_program(rows.count(), {});
  const BoundProgram& narrow = run.model.training_program(rows.count() / 2, {});
  std::vector<std::byte> place(static_cast<std::size_t>(fits.input_bytes()));
  fits.stage(rows, 0, place.data());
  EXPECT_THROW(narrow.stage(rows, 0, place.data()), Error);
}

// Sums between GPUs done through the host, for tests.
class HostGpus final : public DeviceCommunicator {
 public:
  explicit HostGpus(Communicator& ranks) : ranks_(ranks) {}
  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  void sum(std::span<const std::span<float>> pieces) override {
    pending_.push_back(ranks_.start_sum({pieces.begin(), pieces.end()}, "test"));
  }
  void gather(std::span<const OwnedFloats> parts) override {
    std::vector<OwnedBytes> bytes;
    for (const OwnedFloats& part : parts) bytes.push_back({part.rank, std::as_writable_bytes(part.values)});
    ranks_.all_gather(bytes, "test", Wait::watched);
  }
  void join() override {
    for (const auto& sum : pending_) sum->wait();
    pending_.clear();
  }
  void check_errors() override {}

 private:
  Communicator& ranks_;
  std::vector<std::unique_ptr<PendingSum>> pending_;
};

TEST(QueuedStep, TwoRanksWithHalfTheRowsMatchOneRank) {
  for (const bool muon : {false, true}) {
    Trained expected(muon);
    std::vector<float> states;
    const auto step_with = [](Trained& run, DeviceStep& device, int step, std::span<const Rows> rows) {
      device.queue({.step = step,
                    .multiplier = 0.5,
                    .options = {},
                    .micro_batches = rows,
                    .dropout_seeds = std::span(kSeeds).first(rows.size())});
      run.losses.push_back(device.oldest().loss);
    };
    {
      DeviceStep device(expected.context, kKernels, expected.model, expected.optimizer, expected.config.train,
                        false);
      for (int step = 0; step < 4; ++step)
        step_with(expected, device, step, batch_of(expected.config, 3 * step));
      states = expected.states();
    }
    on_threads(2, [&](Communicator& ranks) {
      HostGpus gpus(ranks);
      Trained run(muon);
      DeviceStep device(run.context, kKernels, run.model, run.optimizer, run.config.train, false, &gpus);
      for (int step = 0; step < 4; ++step) {
        const std::vector<Rows> all = batch_of(run.config, 3 * step);
        ASSERT_EQ(all.size(), 2u);
        step_with(run, device, step, std::span(all).subspan(static_cast<std::size_t>(ranks.rank()), 1));
      }
      device.gather_states();
      const std::vector<float> a = expected.weights(), b = run.weights();
      for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 3e-5f) << "weight " << i;
      const std::vector<float> found = run.states();
      for (std::size_t i = 0; i < states.size(); ++i)
        ASSERT_NEAR(states[i], found[i], 1e-5f) << "state " << i;
    });
  }
}

TEST(QueuedStep, RefusesARuleWithoutKernels) {
  Trained run(true);
  StepKernels adam_alone = kKernels;
  adam_alone.rules = std::span(kRules).first(1);
  try {
    DeviceStep device(run.context, adam_alone, run.model, run.optimizer, run.config.train, false);
    FAIL() << "a rule without kernels was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'muon'"), std::string::npos) << error.what();
  }
  static constexpr RuleKernels kNarrow = {.rule = "muon", .settings_bytes = 4, .update = muon};
  static constexpr const RuleKernels* kOther[] = {&kAdamKernels, &kNarrow};
  StepKernels narrow = kKernels;
  narrow.rules = kOther;
  EXPECT_THROW(DeviceStep(run.context, narrow, run.model, run.optimizer, run.config.train, false), Error);
}

// The calls that NCCL receives on each of four GPUs: the same on all, sums before the update, the
// owners' weights after it.
TEST(QueuedStep, EveryRankMakesTheSameCallsInTheSameOrder) {
  std::vector<std::vector<std::string>> calls;
  for (const int rank : {0, 2, 3}) {
    Trained run(true);
    RecordingGpus gpus(rank, 4, run.model.device_weights());
    DeviceStep device(run.context, kKernels, run.model, run.optimizer, run.config.train, false, &gpus);
    const std::vector<Rows> batch = batch_of(run.config, rank);  // ranks have different tokens
    device.queue({.step = 0,
                  .multiplier = 0.5,
                  .options = {},
                  .micro_batches = batch,
                  .dropout_seeds = std::span(kSeeds).first(batch.size())});
    device.oldest();
    calls.push_back(gpus.calls);
  }
  EXPECT_EQ(calls[0], calls[1]);
  EXPECT_EQ(calls[0], calls[2]);
  const Trained one(true);
  std::string weights = "gather";
  for (const Optimizer::ActiveRule& active : one.optimizer.rules())
    for (const OwnedParam& owned : active.rule->owned(4))
      weights +=
          fmt::format(" {}:{}+{}", owned.rank, owned.param->param->offset, owned.param->param->count());
  EXPECT_GT(weights.size(), 6u) << "Muon's matrices";
  ASSERT_EQ(calls[0].size(), 4u);
  EXPECT_EQ(calls[0][0].substr(0, 4), "sum ");  // one bucket contains all gradients
  EXPECT_EQ(calls[0][1], "join");
  EXPECT_EQ(calls[0][2], weights);
  EXPECT_EQ(calls[0][3], "join");
}

}  // namespace
}  // namespace thimble
