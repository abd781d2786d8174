// Validation: best-so-far and patience, averaged weights, and the generated samples.
#include "train/validation.h"

#include <algorithm>
#include <fstream>
#include <numeric>

#include "base/error.h"
#include "base/json.h"
#include "model/model.h"
#include "support/message_of.h"
#include "tensor/device.h"
#include "train/tiny_run.h"

namespace thimble {
namespace {

TEST(Patience, Step0CountsForATrainedModel) {
  const TrainConfig config;
  TrainState state;
  state.began_trained = true;
  EXPECT_TRUE(record_validation(config, 2, state));
  EXPECT_EQ(state.best_step, 0);
  state.step = 10;
  EXPECT_FALSE(record_validation(config, 3, state));
  EXPECT_EQ(state.best_step, 0);
  EXPECT_EQ(state.stale_validations, 1);
}

TEST(Best, ATrainedModelMustBeatTheUntrainedOne) {
  const TrainConfig config;
  TrainState state;
  record_validation(config, 5.78, state);
  state.step = 10;
  EXPECT_FALSE(record_validation(config, 137.78, state));
  EXPECT_EQ(state.best_step, -1);
  EXPECT_EQ(state.stale_validations, 1);
  state.step = 20;
  EXPECT_TRUE(record_validation(config, 5.77, state));
  EXPECT_EQ(state.best_step, 20);
}

TEST(Target, IsReachedByTheBestValidation) {
  TrainConfig config;
  TrainState state;
  state.step = 10;
  record_validation(config, 2.5, state);
  EXPECT_FALSE(reached_target(config, state)) << "0: off";
  config.target_val_loss = 2.5;
  EXPECT_TRUE(reached_target(config, state));
  config.target_val_loss = 2.4;
  EXPECT_FALSE(reached_target(config, state));
}

TEST(Patience, CountsValidationsThatDoNotImproveByMinDelta) {
  TrainConfig config;
  config.patience = 2;
  config.min_delta = 0.1;
  TrainState state;
  EXPECT_FALSE(record_validation(config, 9, state)) << "step 0 is never the best";
  EXPECT_EQ(state.best_step, -1);
  const auto validate = [&](double loss) {
    state.step += 10;
    return record_validation(config, loss, state);
  };
  EXPECT_TRUE(validate(5));
  EXPECT_TRUE(validate(4.95)) << "better, but by less than min_delta";
  EXPECT_EQ(state.stale_validations, 1);
  EXPECT_FALSE(out_of_patience(config, state));
  EXPECT_TRUE(validate(4.8)) << "0.2 below the last that counted";
  EXPECT_EQ(state.stale_validations, 0);
  EXPECT_FALSE(validate(4.9));
  EXPECT_FALSE(validate(4.85));
  EXPECT_TRUE(out_of_patience(config, state));
  config.min_steps = 51;
  EXPECT_FALSE(out_of_patience(config, state));
  config.min_steps = 50;
  EXPECT_TRUE(out_of_patience(config, state));
  config.patience = 0;
  EXPECT_FALSE(out_of_patience(config, state)) << "off";
  EXPECT_EQ(state.best_step, 30);
  EXPECT_EQ(state.best_val_loss, 4.8);
}

class AveragedWeights : public TinyRun {
 protected:
  AveragedWeights() {
    initialize(model_.params(), 1, model_.weights());
    model_.weights_changed();
    averaging_.begin(model_.weights());
    initialize(model_.params(), 2, model_.weights());
    model_.weights_changed();
    raw_.assign(model_.weights().begin(), model_.weights().end());
    average_.assign(averaging_.average().begin(), averaging_.average().end());
  }

  std::vector<float> nats() {
    std::vector<std::int32_t> tokens(16);
    std::iota(tokens.begin(), tokens.end(), 40);
    return model_.score(grid_rows(model_.config(), 16, tokens, tokens)).nats;
  }
  void expect_raw_weights() const {
    EXPECT_TRUE(std::ranges::equal(model_.weights(), raw_));
    EXPECT_TRUE(std::ranges::equal(averaging_.average(), average_));
  }

  Config config_ = config({"ema_decay=0.9"});
  Context context_;
  Model model_{config_.model, context_, DType::bf16};  // programs keep bf16 copies of the weights
  Averaging averaging_{config_.train, model_.params().block_size()};
  std::vector<float> raw_, average_;
};

TEST_F(AveragedWeights, AreUsedDuringTheActionOnly) {
  const std::vector<float> before = nats();
  std::vector<float> inside;
  with_averaged_weights(model_, averaging_, [&] {
    EXPECT_TRUE(std::ranges::equal(model_.weights(), average_));
    inside = nats();
  });
  EXPECT_NE(inside, before);
  expect_raw_weights();
  EXPECT_EQ(nats(), before);
}

TEST_F(AveragedWeights, AreRemovedIfTheActionThrows) {
  const std::vector<float> before = nats();
  std::vector<float> inside;
  const auto act = [&] {
    inside = nats();
    throw Interrupted();
  };
  EXPECT_THROW(with_averaged_weights(model_, averaging_, act), Interrupted);
  EXPECT_NE(inside, before);
  expect_raw_weights();
  EXPECT_EQ(nats(), before) << "programs must prepare their copies again";
}

TEST_F(AveragedWeights, FallBackToRawWeightsWithoutAnAverage) {
  const Averaging none(config({"swa_start=0.5"}).train, model_.params().block_size());
  bool ran = false;
  with_averaged_weights(model_, none, [&] {
    ran = true;
    EXPECT_TRUE(std::ranges::equal(model_.weights(), raw_));
  });
  EXPECT_TRUE(ran);
  expect_raw_weights();
}

// A runtime in host memory that claims to be a GPU: weights have a device copy, changed by uploads.
class CountedUploads final : public DeviceRuntime {
 public:
  int uploads = 0;
  bool lost = false;

  Device device() const override { return Device::cuda; }
  DeviceFacts facts() const override { return host_->facts(); }
  std::byte* allocate(std::int64_t bytes) override { return host_->allocate(bytes); }
  void release(std::byte* block, std::int64_t bytes) noexcept override { host_->release(block, bytes); }
  std::int64_t available_bytes() const override { return host_->available_bytes(); }
  void upload(void* device, const void* host, std::int64_t bytes) override {
    check(!lost, "the device is lost");
    ++uploads;
    host_->upload(device, host, bytes);
  }
  void download(void* host, const void* device, std::int64_t bytes) override {
    host_->download(host, device, bytes);
  }
  void copy(void* to, const void* from, std::int64_t bytes) override { host_->copy(to, from, bytes); }
  void zero(void* device, std::int64_t bytes) override { host_->zero(device, bytes); }
  void synchronize() override {}
  std::byte* allocate_pinned(std::int64_t bytes) override { return host_->allocate_pinned(bytes); }
  void release_pinned(std::byte* block, std::int64_t bytes) noexcept override { release(block, bytes); }
  std::unique_ptr<DeviceEvent> make_event() override { return host_->make_event(); }
  void begin_capture() override { host_->begin_capture(); }
  std::unique_ptr<DeviceGraph> end_capture() override { return host_->end_capture(); }

 private:
  std::shared_ptr<DeviceRuntime> host_ = cpu_runtime();
};

class AveragedWeightsOnADevice : public TinyRun {
 protected:
  AveragedWeightsOnADevice() {
    initialize(model_.params(), 1, model_.weights());
    averaging_.begin(model_.weights());
    initialize(model_.params(), 2, model_.weights());
    model_.weights_changed();
    raw_.assign(model_.weights().begin(), model_.weights().end());
    runtime_->uploads = 0;
  }

  bool device_has(std::span<const float> weights) const {
    return std::ranges::equal(std::span(model_.device_weights(), weights.size()), weights);
  }

  Config config_ = config({"ema_decay=0.9"});
  std::shared_ptr<CountedUploads> runtime_ = std::make_shared<CountedUploads>();
  Context context_{runtime_};
  Model model_{config_.model, context_};
  Averaging averaging_{config_.train, model_.params().block_size()};
  std::vector<float> raw_;
};

TEST_F(AveragedWeightsOnADevice, AreUploadedOnceAndThenTheRawOnesOnce) {
  const std::vector<float> average(averaging_.average().begin(), averaging_.average().end());
  with_averaged_weights(model_, averaging_, [&] { EXPECT_TRUE(device_has(average)); });
  EXPECT_EQ(runtime_->uploads, 2);
  EXPECT_TRUE(device_has(raw_));
  const auto act = [] { throw Interrupted(); };
  EXPECT_THROW(with_averaged_weights(model_, averaging_, act), Interrupted);
  EXPECT_EQ(runtime_->uploads, 4);
  EXPECT_TRUE(device_has(raw_));
}

TEST_F(AveragedWeightsOnADevice, ReportsTheFirstErrorIfTheDeviceIsLost) {
  const auto act = [this] {
    runtime_->lost = true;
    fail("the kernel failed");
  };
  EXPECT_EQ(message_of([&] { with_averaged_weights(model_, averaging_, act); }), "the kernel failed");
  EXPECT_TRUE(std::ranges::equal(model_.weights(), raw_)) << "a checkpoint can still be written";
}

class Samples : public TinyRun {
 protected:
  std::vector<Json> samples_in(const std::string& run) const {
    std::vector<Json> events;
    std::ifstream file(folder_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (Json event = parse_json(line, "line"); event.at("event").as_string() == "sample")
        events.push_back(std::move(event));
    return events;
  }
};

TEST_F(Samples, AreGeneratedAtEveryValidationAndDoNotChangeTheRun) {
  TrainRequest with = request("with", {"swa_start=0.9", "swa_every=2"});
  with.samples = 3;
  const TrainResult result = run(with);
  EXPECT_EQ(samples_in("with").size(), 3u * 5) << "steps 0, 6, 12, 18 and 20";
  EXPECT_EQ(run(request("without", {"swa_start=0.9", "swa_every=2"})).val_loss, result.val_loss);
  EXPECT_EQ(last("with"), last("without"));
}

TEST_F(Samples, AreTheSameAfterAResume) {
  TrainRequest straight = request("straight"), first = request("resumed"), second = resumed("resumed");
  for (TrainRequest* each : {&straight, &first, &second}) each->samples = 2;
  run(straight);
  run_until(first, 9);
  run(second);
  EXPECT_EQ(samples_in("resumed"), samples_in("straight"));
}

TEST_F(Samples, ForChatsAnswerQuestionsOfTheValidationSet) {
  TrainRequest chats = chat_request("chats", {"context=64", "batch_tokens=128"});
  chats.samples = 2;
  run(chats);
  const std::vector<Json> samples = samples_in("chats");
  ASSERT_FALSE(samples.empty());
  const std::string& question = samples.front().at("prompt").as_string();
  EXPECT_TRUE(question.starts_with("<user>what is ")) << question;
  EXPECT_TRUE(question.ends_with("?<end_turn><assistant>")) << question;
  EXPECT_NE(question, samples[1].at("prompt").as_string());
}

}  // namespace
}  // namespace thimble
