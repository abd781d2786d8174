// Attention on the GPU: forward and backward at the sizes of real models, compared with a large
// matrix product of cuBLASLt. FLOPs count the keys that queries attend to: 2 products forward, 5
// backward.
#include <fmt/format.h>

#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/table.h"
#include "ops/attention.h"
#include "ops/cuda_plugin.h"
#include "ops/linear.h"
#include "ops/table.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace thimble {
namespace {

constexpr int kWarmUp = 3, kCalls = 10, kRepeats = 7;
constexpr std::int64_t kWidth = 512;  // of all query heads together, at most: the golf baseline's

// Tensors on the GPU.
class Memory {
 public:
  explicit Memory(std::shared_ptr<DeviceRuntime> gpu) : gpu_(std::move(gpu)) {}

  Tensor empty(std::int64_t rows, std::int64_t cols, DType dtype) {
    blocks_.emplace_back(gpu_, rows * cols * dtype_bytes(dtype), "a measurement", "--");
    return {blocks_.back().at(0), rows, cols, cols, dtype, Device::cuda};
  }
  Tensor random(std::int64_t rows, std::int64_t cols) {
    std::vector<float> drawn(static_cast<std::size_t>(rows * cols));
    fill_normal(drawn, 0, 1, 1, blocks_.size());
    std::vector<bf16> numbers(drawn.size());
    std::transform(drawn.begin(), drawn.end(), numbers.begin(), to_bf16);
    return filled(empty(rows, cols, DType::bf16), numbers.data());
  }
  Tensor first_rows(std::int64_t rows, std::int64_t context) {
    std::vector<std::int32_t> first;
    for (std::int64_t n = 0; n < rows; ++n) first.push_back(static_cast<std::int32_t>(n - n % context));
    return filled(empty(rows, 1, DType::i32), first.data());
  }

 private:
  Tensor filled(const Tensor& to, const void* from) {
    gpu_->upload(to.data, from, to.shape().bytes());
    gpu_->synchronize();
    return to;
  }

  std::shared_ptr<DeviceRuntime> gpu_;
  std::vector<Arena> blocks_;
};

// The median over kRepeats of the time per call.
template <class Call>
double microseconds(const std::shared_ptr<DeviceRuntime>& gpu, Call call) {
  for (int i = 0; i < kWarmUp; ++i) call();
  std::vector<double> times;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto before = gpu->make_event(), after = gpu->make_event();
    before->record();
    for (int i = 0; i < kCalls; ++i) call();
    after->record();
    after->wait();
    times.push_back(1e3 * after->milliseconds_since(*before) / kCalls);
  }
  return median(times);
}

const Kernels& cuda_kernels(const OpDefinition* op) {
  return *cuda_backend().find(*op);
}

// TFLOP/s of an [8192, 8192] x [8192, 8192] product.
double product_peak(const std::shared_ptr<DeviceRuntime>& gpu) {
  constexpr std::int64_t kSide = 8192;
  const Context context(gpu);
  Memory memory(gpu);
  const Tensor in[] = {memory.random(kSide, kSide), memory.random(kSide, kSide)};
  const Tensor out[] = {memory.empty(kSide, kSide, DType::bf16)};
  OpCall call;
  call.in = in;
  call.out = out;
  call.attributes = LinearAttributes{};
  const double us = microseconds(gpu, [&] { cuda_kernels(&op::kLinear).forward(context, call); });
  return 2.0 * kSide * kSide * kSide / us * 1e-6;
}

struct Size {
  std::int64_t rows, context, head_size, window = 0;
  float softcap = 0;
};

void measure(const std::shared_ptr<DeviceRuntime>& gpu, const Size& size, double peak, Table& table) {
  const Context context(gpu);
  Memory memory(gpu);
  const std::int64_t kv_heads = kWidth / size.head_size / 2, heads = 2 * kv_heads;
  const std::int64_t width = heads * size.head_size, kv_width = width / 2;
  const AttentionAttributes attributes{static_cast<std::int32_t>(heads), static_cast<std::int32_t>(kv_heads),
                                       1 / std::sqrt(static_cast<float>(size.head_size)), size.softcap,
                                       static_cast<std::int32_t>(size.window)};
  const Tensor in[] = {memory.random(size.rows, width), memory.random(size.rows, kv_width),
                       memory.random(size.rows, kv_width), memory.first_rows(size.rows, size.context)};
  const Tensor out[] = {memory.empty(size.rows, width, DType::bf16),
                        memory.empty(size.rows, heads, DType::f32)};
  const Tensor d_out[] = {memory.random(size.rows, width)};
  const Tensor d_in[] = {memory.empty(size.rows, width, DType::bf16),
                         memory.empty(size.rows, kv_width, DType::bf16),
                         memory.empty(size.rows, kv_width, DType::bf16)};
  std::vector<Shape> shapes;
  for (const Tensor& t : in) shapes.push_back(t.shape());
  OpCall call;
  call.in = in;
  call.out = out;
  call.attributes = attributes;
  const double forward = microseconds(gpu, [&] { cuda_kernels(&op::kAttention).forward(context, call); });
  call.d_out = d_out;
  call.d_in = d_in;
  call.scratch = memory.empty(1, cuda_backend().scratch_bytes(op::kAttention, shapes, attributes), DType::u8);
  const double backward = microseconds(gpu, [&] { cuda_kernels(&op::kAttention).backward(context, call); });
  const auto T = static_cast<double>(size.context),
             W = size.window > 0 ? static_cast<double>(size.window) : T;
  const double keys = (W * (W + 1) / 2 + (T - W) * W) / T;  // the mean over queries
  const double product = 2.0 * static_cast<double>(size.rows * width) * keys;
  const auto rate = [&](double products, double us) { return products * product / us * 1e-6; };
  table.row({with_commas(size.rows), fmt::format("{}", size.context), fmt::format("{}", size.head_size),
             size.window > 0 ? fmt::format("{}", size.window) : "-",
             size.softcap > 0 ? fmt::format("{}", size.softcap) : "-", fmt::format("{:.1f}", forward),
             fmt::format("{:.1f}", backward), fmt::format("{:.1f}", forward + backward),
             fmt::format("{:.0f}", rate(2, forward)), fmt::format("{:.0f}", rate(5, backward)),
             fmt::format("{:.3f}", rate(7, forward + backward) / peak)});
}

void run() {
  const auto gpu = open_cuda();
  const double peak = product_peak(gpu);
  Table table({"rows", "T", "D", "window", "softcap", "forward, us", "backward, us", "both, us",
               "forward, TFLOP/s", "backward, TFLOP/s", "of a product's"});
  for (const std::int64_t head_size : {64, 128, 32})
    for (const std::int64_t context : {1024, 2048})
      for (const std::int64_t rows : {8192, 32768, 65536})
        measure(gpu, {rows, context, head_size}, peak, table);
  // Windows of mistral and gemma, and gemma's heads and softcap.
  for (const std::int64_t head_size : {64, 128, 96, 256})
    for (const std::int64_t window : {0, 512, 1024})
      measure(gpu, {32768, 8192, head_size, window}, peak, table);
  for (const float softcap : {0.0f, 50.0f}) measure(gpu, {32768, 2048, 256, 0, softcap}, peak, table);
  fmt::print("{}, bf16, {} columns of queries, half as many of keys; 8192 x 8192 x 8192: {:.0f} TFLOP/s\n{}",
             gpu->facts().name, kWidth, peak, table.text());
}

}  // namespace
}  // namespace thimble

int main() {
  try {
    thimble::run();
  } catch (const thimble::Error& error) {
    fmt::print(stderr, "{}\n", thimble::describe(error));
    return 1;
  }
}
