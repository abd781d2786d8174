#include "eval/calibrate.h"

#include <algorithm>

#include "base/error.h"
#include "infer/generate.h"

namespace thimble {

namespace {

constexpr std::int64_t kSampledAtOnce = 16;  // each has a slot of the cache
constexpr std::int64_t kSampledByOne = 512;  // request: it may ask for 1000
constexpr float kTemperature = 0.8f;         // parameter-golf 2.12

std::int64_t windows_for(std::int64_t tokens, std::int64_t T) {
  return std::max<std::int64_t>(1, tokens / T);
}

// Rows of a tensor in host memory; those of a card are copied.
class HostRows {
 public:
  explicit HostRows(std::shared_ptr<DeviceRuntime> runtime) : runtime_(std::move(runtime)) {}

  Tensor of(const Tensor& x) {
    if (x.device == Device::cpu) return x;
    const std::int64_t bytes = x.end_bytes() - x.begin_bytes();
    if (buffer_.bytes() < bytes) buffer_ = PinnedBuffer(runtime_, bytes);
    runtime_->download(buffer_.data(), x.data, bytes);
    runtime_->synchronise();
    Tensor host = x;
    host.data = buffer_.data();
    host.device = Device::cpu;
    return host;
  }

 private:
  std::shared_ptr<DeviceRuntime> runtime_;
  PinnedBuffer buffer_;
};

}  // namespace

Grid calibration_windows(const TokenSet& set, const ModelConfig& config, std::int64_t tokens) {
  const auto T = static_cast<std::uint64_t>(config.context);
  const auto wanted = static_cast<std::uint64_t>(windows_for(tokens, config.context));
  const std::uint64_t count = std::clamp<std::uint64_t>(set.size() / T, 1, wanted);
  Grid grid;
  for (std::uint64_t i = 0; i < count; ++i)
    set.append_window(set.size() / count * i, config.context, config.isolate, grid);
  return grid;
}

Grid sampled_windows(Model& model, TokenId bos, std::int64_t tokens, std::uint64_t seed,
                     const ProgressOutput& progress, const Interrupt* interrupt) {
  const std::int64_t T = model.config().context, count = windows_for(tokens, T);
  ProgressBar bar(progress, "sampling", "tokens", static_cast<std::uint64_t>(count * T));
  Batcher batcher(model, nullptr, {.slots = std::min(count, kSampledAtOnce)});
  Grid grid;
  for (std::int64_t done = 0; done < count; done += kSampledByOne) {
    // No ids stop it: a text that has ended is followed by the next.
    Request request{
        .prompt = {bos},
        .sampling = {.temperature = kTemperature, .seed = seed + static_cast<std::uint64_t>(done)},
        .samples = static_cast<int>(std::min(kSampledByOne, count - done)),
        .max_tokens = T - 1};
    const std::vector<Sample> samples = generate(
        batcher, std::move(request), [&](const Event& event) { bar.advance(event.tokens.size()); },
        interrupt);
    if (interrupt) interrupt->throw_if_asked();
    for (const Sample& sample : samples) {
      grid.input.push_back(bos);
      for (const TokenScore& token : sample.tokens) grid.input.push_back(token.id);
      grid.input.resize((grid.input.size() + static_cast<std::size_t>(T) - 1) / static_cast<std::size_t>(T) *
                            static_cast<std::size_t>(T),
                        bos);
    }
  }
  for (std::size_t i = 0; i < grid.input.size(); ++i) {
    const bool row_start = i % static_cast<std::size_t>(T) == 0;
    grid.doc_start.push_back(row_start || (model.config().isolate && grid.input[i] == bos));
  }
  grid.target.assign(grid.input.size(), -1);
  grid.tokens = static_cast<std::int64_t>(grid.input.size());
  return grid;
}

InputMoments calibrate(Model& model, const Grid& windows, const ProgressOutput& progress,
                       const Interrupt* interrupt) {
  const auto T = static_cast<std::size_t>(model.config().context);
  const std::size_t rows = windows.input.size() / T;
  check(rows > 0, "[calibrate] there is no text");
  const auto at_once = std::max<std::size_t>(1, static_cast<std::size_t>(model.scored_at_once()) / T);
  ProgressBar bar(progress, "calibrating", "tokens", windows.input.size());
  InputMoments moments;
  HostRows host(model.runtime());
  for (std::size_t begin = 0; begin < rows; begin += at_once) {
    if (interrupt) interrupt->throw_if_asked();
    const std::size_t from = begin * T, count = std::min(at_once, rows - begin) * T;
    const Rows batch = grid_rows(
        model.config(), static_cast<std::int64_t>(T), std::span(windows.input).subspan(from, count),
        std::span(windows.target).subspan(from, count), std::span(windows.doc_start).subspan(from, count));
    model.watch_products(batch,
                         [&](const ParamView& weight, const Tensor& x) { moments.add(weight, host.of(x)); });
    bar.advance(count);
  }
  return moments;
}

}  // namespace thimble
