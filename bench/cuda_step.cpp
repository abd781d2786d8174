// Speed of an optimizer step on one GPU, with Muon and Adam as in the preset, in micro-batches of
// several sizes, each step as one launch. Also measures what Muon costs and what capturing the step
// saves.
//
//   cuda_step_bench [TOKENS PER STEP [TOKENS PER MICRO-BATCH]...]
//
// Default: every shape, micro-batches of 32,768 to 131,072 tokens.
#include <fmt/format.h>

#include <charconv>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/table.h"
#include "config/builder.h"
#include "ops/cuda_plugin.h"
#include "optim/device_step.h"

namespace thimble {
namespace {

constexpr int kWarmUp = 3, kRepeats = 3;
constexpr double kMilliseconds = 250;  // least duration of a repeat

struct StepShape {
  const char* name;
  std::vector<const char*> settings;
  std::int64_t tokens;
  double torch_milliseconds;  // train_gpt.py under torch.compile on an H200: docs/benchmarks.md
};

const std::vector<StepShape>& shapes() {
  static const std::vector<StepShape> all = {
      {"golf", {}, 65536, 201.6},
      {"golf", {}, 131072, 218.7},
      {"golf", {}, 524288, 306.9},
      {"11 layers, MLP 3x, T=2048", {"layers=11", "mlp_hidden=1536", "context=2048"}, 786432, 737}};
  return all;
}

class StepTimer {
 public:
  StepTimer(const std::shared_ptr<DeviceRuntime>& gpu, const Config& config, std::int64_t tokens,
            std::int64_t micro_batch, bool capture)
      : gpu_(gpu),
        context_(gpu),
        model_(config.model, context_, DType::bf16),
        optimizer_(model_.params(), config.optimizer, context_),
        step_(context_, cuda_plugin().step, model_, optimizer_, config.train, capture) {
    initialize(model_.params(), 1, model_.weights());
    model_.weights_changed();
    Rng random(1);
    for (std::int64_t begin = 0; begin < tokens; begin += micro_batch) {
      std::vector<std::int32_t> input(static_cast<std::size_t>(std::min(micro_batch, tokens - begin)));
      for (std::int32_t& token : input)
        token = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(config.model.vocab_size)));
      batch_.push_back(grid_rows(config.model, config.model.context, input, input));
      for (float& weight : batch_.back().weight)
        weight *= static_cast<float>(micro_batch) / static_cast<float>(tokens);
    }
    seeds_.resize(batch_.size());
    run(kWarmUp);
    const double once = timed(1);
    steps_ = std::max(1, static_cast<int>(kMilliseconds / once));
  }

  double milliseconds() { return timed(steps_) / steps_; }

 private:
  double timed(int steps) {
    const auto before = gpu_->make_event(), after = gpu_->make_event();
    before->record();
    run(steps);
    after->record();
    after->wait();
    return after->milliseconds_since(*before);
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i)
      step_.queue(
          {.step = i, .multiplier = 1e-3, .options = {}, .micro_batches = batch_, .dropout_seeds = seeds_});
    while (step_.steps_in_flight() > 0) step_.oldest();
  }

  std::shared_ptr<DeviceRuntime> gpu_;
  Context context_;
  Model model_;
  Optimizer optimizer_;
  DeviceStep step_;
  std::vector<Rows> batch_;
  std::vector<std::uint64_t> seeds_;
  int steps_ = 1;
};

Config config_of(const StepShape& shape, bool muon) {
  ConfigBuilder settings;
  settings.preset("golf");
  for (const char* setting : shape.settings) settings.set(setting);
  settings.set(fmt::format("batch_tokens={}", shape.tokens));
  if (!muon) settings.set("muon_steps=0");
  return settings.resolve();
}

double median_milliseconds(const std::shared_ptr<DeviceRuntime>& gpu, const StepShape& shape,
                           std::int64_t micro_batch, bool muon, bool capture) {
  StepTimer timer(gpu, config_of(shape, muon), shape.tokens, micro_batch, capture);
  std::vector<double> times;
  for (int i = 0; i < kRepeats; ++i) times.push_back(timer.milliseconds());
  return median(times);
}

void run(std::span<const std::int64_t> requested) {
  const auto gpu = open_cuda();
  const std::vector<std::int64_t> usual = {32768, 65536, 131072};
  const std::span<const std::int64_t> sizes = requested.size() > 1 ? requested.subspan(1) : usual;
  Table table({"shape", "tokens per step", "micro-batch", "ms", "tokens/s", "ms per 65,536", "PyTorch / ours"});
  for (const StepShape& shape : shapes()) {
    if (!requested.empty() && shape.tokens != requested[0]) continue;
    for (const std::int64_t size : sizes) {
      if (size > shape.tokens) continue;
      const double ms = median_milliseconds(gpu, shape, size, true, true);
      const auto tokens = static_cast<double>(shape.tokens);
      table.row({shape.name, with_commas(shape.tokens), with_commas(size), fmt::format("{:.2f}", ms),
                 with_unit(1e3 * tokens / ms), fmt::format("{:.2f}", ms * 65536 / tokens),
                 fmt::format("{:.2f}", shape.torch_milliseconds / ms)});
    }
  }
  fmt::print("{}, bf16, captured\n{}", gpu->facts().name, table.text());
  if (!requested.empty()) return;

  const StepShape& first = shapes().front();
  const auto time = [&](bool muon, bool capture) {
    return median_milliseconds(gpu, first, first.tokens, muon, capture);
  };
  const double all = time(true, true);
  fmt::print(
      "{} tokens as one micro-batch: {:.2f} ms; with Adam instead of Muon {:.2f}; not captured {:.2f}\n",
      with_commas(first.tokens), all, time(false, true), time(true, false));
}

std::vector<std::int64_t> numbers(std::span<char*> arguments) {
  std::vector<std::int64_t> values;
  for (const std::string_view text : arguments) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    check(error == std::errc{} && end == text.data() + text.size() && value > 0,
          "expected a number of tokens, found '{}'", text);
    values.push_back(value);
  }
  return values;
}

}  // namespace
}  // namespace thimble

int main(int count, char** arguments) {
  try {
    thimble::run(thimble::numbers({arguments + 1, static_cast<std::size_t>(count - 1)}));
  } catch (const thimble::Error& error) {
    fmt::print(stderr, "{}\n", thimble::describe(error));
    return 1;
  }
}
