// Sums, clipping and Adam on the device, compared with the reference.
#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"
#include "cuda/device.h"
#include "ops/sums.h"
#include "optim/adam.h"
#include "tensor/arena.h"
#include "tensor/device.h"

namespace thimble {
namespace {

std::vector<float> numbers(std::int64_t count, std::uint64_t stream, float deviation = 1) {
  std::vector<float> values(static_cast<std::size_t>(count));
  fill_normal(values, 0, deviation, 5, stream);
  return values;
}

// A vector in device memory.
template <class T>
class OnGpu {
 public:
  OnGpu(std::shared_ptr<DeviceRuntime> runtime, std::vector<T> values)
      : runtime_(runtime), values_(std::move(values)), arena_(runtime, bytes(), "a test", "test less") {
    runtime_->upload(data(), values_.data(), bytes());
  }
  T* data() const { return reinterpret_cast<T*>(arena_.at(0)); }
  const std::vector<T>& fetch() {
    runtime_->download(values_.data(), data(), bytes());
    runtime_->synchronize();
    return values_;
  }

 private:
  std::int64_t bytes() const { return static_cast<std::int64_t>(values_.size() * sizeof(T)); }

  std::shared_ptr<DeviceRuntime> runtime_;
  std::vector<T> values_;
  Arena arena_;
};

class StepKernelsOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    const DeviceChoice gpu = find_gpu();
    if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
    runtime_ = gpu.runtime;
    context_ = std::make_unique<Context>(runtime_);
  }

  const StepKernels& kernels() const { return cuda_plugin().step; }
  Arena scratch(std::int64_t count) const {
    return Arena(runtime_, kernels().sum_scratch_bytes(count), "a test", "test less");
  }
  StepState norm_of(const std::vector<float>& gradients, double clip) const {
    const auto count = static_cast<std::int64_t>(gradients.size());
    OnGpu<float> on_gpu(runtime_, gradients);
    StepState state;
    state.clip = clip;
    OnGpu<StepState> states(runtime_, {state});
    const Arena sums = scratch(count);
    kernels().finish_norm(*context_, on_gpu.data(), count, states.data(), nullptr, sums.at(0));
    return states.fetch()[0];
  }

  std::shared_ptr<DeviceRuntime> runtime_;
  std::unique_ptr<Context> context_;
};

TEST_F(StepKernelsOnCuda, WeightedSumsAreF64AndDeterministic) {
  for (const std::int64_t count : {1, 31, 1000, 65537, 3000001}) {
    const std::vector<float> values = numbers(count, 1), weights = numbers(count, 2);
    OnGpu<float> a(runtime_, values), b(runtime_, weights);
    OnGpu<double> totals(runtime_, {0.5, 0.5});
    const Arena sums = scratch(count);
    for (int i = 0; i < 2; ++i)
      kernels().add_weighted_sum(*context_, a.data(), b.data(), count, totals.data() + i, sums.at(0));
    const std::vector<double>& found = totals.fetch();
    EXPECT_NEAR(found[0] - 0.5, ref::weighted_sum(values, weights),
                1e-9 * std::sqrt(static_cast<double>(count)));
    EXPECT_EQ(found[0], found[1]);
  }
}

TEST_F(StepKernelsOnCuda, NormClipsAndDetectsNonFiniteGradients) {
  for (const std::int64_t count : {1, 5000, 1000003}) {
    std::vector<float> gradients = numbers(count, 3);
    const double norm = std::sqrt(ref::sum_of_squares(gradients));
    const StepState free = norm_of(gradients, 0), clipped = norm_of(gradients, norm / 4),
                    loose = norm_of(gradients, 2 * norm);
    EXPECT_NEAR(free.norm, norm, 1e-12 * norm);
    EXPECT_EQ(free.grad_scale, 1);
    EXPECT_EQ(loose.grad_scale, 1);
    EXPECT_NEAR(clipped.grad_scale, norm / 4 / (norm + kClipEps), 1e-7);
    EXPECT_EQ(free.finite, 1);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      gradients.back() = bad;
      EXPECT_EQ(norm_of(gradients, 1).finite, 0);
    }
  }
}

TEST_F(StepKernelsOnCuda, ResultsDoNotIncludeTheLossScale) {
  const std::int64_t count = 5000;
  std::vector<float> gradients = numbers(count, 3), scaled = gradients, weights = numbers(count, 4);
  for (float& gradient : scaled) gradient *= 1024;
  const StepState plain = norm_of(gradients, 2);

  OnGpu<LossScale> scales(runtime_, {{1024, kGrowthSteps - 1}});
  OnGpu<float> rows(runtime_, weights);
  kernels().scale_rows(*context_, scales.data(), rows.data(), count);
  for (float& weight : weights) weight *= 1024;
  EXPECT_EQ(rows.fetch(), weights);

  StepState state;
  state.clip = 2;
  state.loss = 3 * 1024;
  OnGpu<StepState> states(runtime_, {state});
  OnGpu<float> on_gpu(runtime_, scaled);
  const Arena sums = scratch(count);
  kernels().finish_norm(*context_, on_gpu.data(), count, states.data(), scales.data(), sums.at(0));
  const StepState found = states.fetch()[0];
  EXPECT_EQ(found.loss, 3);
  EXPECT_EQ(found.norm, plain.norm);
  EXPECT_EQ(found.squared_norm, plain.squared_norm);
  EXPECT_EQ(found.grad_scale * 1024, plain.grad_scale);
  EXPECT_EQ(found.loss_scale, 2048);
  EXPECT_EQ(scales.fetch()[0], (LossScale{2048, 0}));

  scaled[17] = std::numeric_limits<float>::infinity();
  OnGpu<float> broken(runtime_, scaled);
  kernels().finish_norm(*context_, broken.data(), count, states.data(), scales.data(), sums.at(0));
  EXPECT_EQ(states.fetch()[0].finite, 0);
  EXPECT_EQ(scales.fetch()[0], (LossScale{1024, 0}));
}

TEST_F(StepKernelsOnCuda, AdamUpdatesOnlyItsChunksWithTheirGroups) {
  // Two parameters of different groups, with an unused gap between them.
  const std::int64_t first_count = kAdamChunk + 77, gap = 19, second_count = 300;
  const std::int64_t total = first_count + gap + second_count;
  const AdamStep steps[2] = {{.lr = 0.01f, .decay = 0.1f, .grad_scale = 0.5f, .t = 3},
                             {.lr = 0.3f, .beta1 = 0.8f, .beta2 = 0.9f, .grad_scale = 0.5f, .t = 3}};
  const std::vector<AdamChunk> chunks = {
      {0, 0, 0, static_cast<std::int32_t>(kAdamChunk), 1},
      {kAdamChunk, kAdamChunk, kAdamChunk, 77, 1},
      {first_count + gap, first_count + gap, first_count, static_cast<std::int32_t>(second_count), 4}};
  const std::vector<float> p = numbers(total, 1), g = numbers(total, 2), m = numbers(total, 3, 0.1f);
  std::vector<float> v = numbers(first_count + second_count, 4, 0.1f);
  for (float& value : v) value *= value;

  for (const std::int32_t finite : {1, 0}) {
    StepState state;
    state.grad_scale = 0.5f;
    state.finite = finite;
    AdamSettings rates;
    rates.groups[1] = adam_group(steps[0]);
    rates.groups[4] = adam_group(steps[1]);
    OnGpu<StepState> states(runtime_, {state});
    OnGpu<AdamSettings> settings(runtime_, {rates});
    OnGpu<AdamChunk> items(runtime_, chunks);
    OnGpu<float> weights(runtime_, p), gradients(runtime_, g), first(runtime_, m), second(runtime_, v);
    kernels().find("adam")->update(
        *context_, {.state = states.data(),
                    .settings = reinterpret_cast<const std::byte*>(settings.data()),
                    .items = reinterpret_cast<const std::byte*>(items.data()),
                    .item_bytes = static_cast<std::int64_t>(chunks.size() * sizeof(AdamChunk)),
                    .memory = {weights.data(), gradients.data(), {first.data(), second.data()}}});

    std::vector<float> expected = p, expected_m = m, expected_v = v;
    const auto update = [&](int which, std::int64_t offset, std::int64_t second_offset, std::int64_t count) {
      const auto part = [&](std::vector<float>& all, std::int64_t begin) {
        return std::span(all).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
      };
      std::vector<float> gradient(g.begin() + offset, g.begin() + offset + count);
      ref::adam(steps[which], part(expected, offset), gradient, part(expected_m, offset),
                part(expected_v, second_offset));
    };
    if (finite) {
      update(0, 0, 0, first_count);
      update(1, first_count + gap, first_count, second_count);
    }
    const auto compare = [](const std::vector<float>& a, const std::vector<float>& b) {
      ASSERT_EQ(a.size(), b.size());
      for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-6) << "element " << i;
    };
    compare(expected, weights.fetch());
    compare(expected_m, first.fetch());
    compare(expected_v, second.fetch());
    if (!finite) {
      EXPECT_EQ(weights.fetch(), p);
    }
  }
}

}  // namespace
}  // namespace thimble
