// Fused runs compared with separate calls.
#include <cmath>

#include "base/rng.h"
#include "cuda/device.h"
#include "ops/norm.h"
#include "ops/residual.h"
#include "tensor/arena.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace thimble {
namespace {

struct Case {
  std::int64_t rows, cols, mix_cols;
  bool one_value = false;  // x and x0 are the same value, as in the first layer
  bool sum = false;        // x is the result of an add_scaled
};

// The tensors of residual_mix followed by rmsnorm, optionally after an add_scaled, in GPU memory.
class MixAndNorm {
 public:
  MixAndNorm(const std::shared_ptr<DeviceRuntime>& gpu, const Case& shape)
      : gpu_(gpu), context_(gpu), arena_(gpu, kBytes, "a test", "test less"), shape_(shape) {
    x = filled(DType::bf16, shape.rows, shape.cols, 1);
    x0 = shape.one_value ? x : filled(DType::bf16, shape.rows, shape.cols, 2);
    mix = filled(DType::f32, 2, shape.mix_cols, 3);
    y = filled(DType::bf16, shape.rows, shape.cols, 4);
    h = filled(DType::bf16, shape.rows, shape.cols, 5);
    rstd = filled(DType::f32, shape.rows, 1, 6);
    dh = filled(DType::bf16, shape.rows, shape.cols, 7);
    dy = filled(DType::bf16, shape.rows, shape.cols, 8);  // with contributions of other ops
    dx0 = filled(DType::f32, shape.rows, shape.cols, 9);
    dx = shape.one_value ? dx0 : filled(DType::bf16, shape.rows, shape.cols, 10);
    dmix = filled(DType::f32, 2, shape.mix_cols, 11);
    part = filled(DType::bf16, shape.rows, shape.cols, 12);
    branch = filled(DType::bf16, shape.rows, shape.cols, 13);
    scale = filled(DType::f32, 1, shape.mix_cols, 14);
    scratch = place(DType::u8, 1, 4 << 20);
    bind();
  }

  void forward(bool together) {
    std::vector<Part> parts = {{&op::kResidualMix, mix_in_, mix_out_, {}, {}},
                               {&op::kRmsNorm, norm_in_, norm_out_, {}, {}}};
    if (shape_.sum) parts.insert(parts.begin(), {&op::kAddScaled, sum_in_, sum_out_, {}, {}});
    run(together, parts, false);
  }
  void backward(bool together) {
    std::vector<Part> parts = {{&op::kRmsNorm, norm_in_, norm_out_, d_norm_out_, d_norm_in_},
                               {&op::kResidualMix, mix_in_, {}, d_mix_out_, d_mix_in_}};
    run(together, parts, true);
  }

  std::vector<float> fetch(const Tensor& t) const {
    std::vector<std::byte> bytes(static_cast<std::size_t>(t.shape().bytes()));
    gpu_->download(bytes.data(), t.data, t.shape().bytes());
    gpu_->synchronize();
    std::vector<float> values(static_cast<std::size_t>(t.count()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = t.dtype == DType::bf16 ? to_f32(reinterpret_cast<const bf16*>(bytes.data())[i])
                                         : reinterpret_cast<const float*>(bytes.data())[i];
    return values;
  }

  Tensor x, x0, mix, y, h, rstd, dh, dy, dx, dx0, dmix, scratch;
  Tensor part, branch, scale;  // x = part + scale (.) branch

 private:
  static constexpr std::int64_t kBytes = 32 << 20;
  struct Part {
    Op op;
    std::span<const Tensor> in, out, d_out, d_in;
  };

  // Adds to gradients that have earlier contributions: those of y, x0 and the vectors.
  OpCall call_of(const Part& part) const {
    OpCall made{.in = part.in,
                .out = part.out,
                .d_out = part.d_out,
                .d_in = part.d_in,
                .attributes = {},
                .scratch = scratch};
    if (part.op == &op::kRmsNorm) made.attributes = RmsNormAttributes{1e-6f, 0.5f};
    if (part.op == &op::kAddScaled) made.attributes = AddScaledAttributes{0.75f};
    if (part.d_in.empty()) return made;
    made.add = part.op == &op::kRmsNorm ? 1u : part.op == &op::kAddScaled ? 4u : shape_.one_value ? 7u : 6u;
    return made;
  }

  void run(bool together, const std::vector<Part>& parts, bool backward) {
    std::vector<OpCall> calls;
    std::vector<const OpCall*> pointers;
    std::vector<Op> ops;
    for (const Part& part : parts) calls.push_back(call_of(part)), ops.push_back(part.op);
    for (const OpCall& call : calls) pointers.push_back(&call);
    if (together) {
      const FusedKernel fused = cuda_backend().fused(ops, backward);
      ASSERT_NE(fused, nullptr);
      fused(context_, pointers);
      return;
    }
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const Kernels& kernels = *cuda_backend().find(*ops[i]);
      (backward ? kernels.backward : kernels.forward)(context_, calls[i]);
    }
  }

  void bind() {
    mix_in_ = {x, x0, mix};
    mix_out_ = {y};
    norm_in_ = {y};
    norm_out_ = {h, rstd};
    d_norm_out_ = {dh};
    d_norm_in_ = {dy};
    d_mix_out_ = {dy};
    d_mix_in_ = {dx, dx0, dmix};
    sum_in_ = {part, branch, scale};
    sum_out_ = {x};
  }

  Tensor place(DType dtype, std::int64_t rows, std::int64_t cols) {
    const Tensor t{arena_.at(used_), rows, cols, cols, dtype, Device::cuda};
    used_ += align_up(t.shape().bytes(), 256);
    EXPECT_LE(used_, kBytes);
    return t;
  }
  Tensor filled(DType dtype, std::int64_t rows, std::int64_t cols, std::uint64_t stream) {
    const Tensor t = place(dtype, rows, cols);
    std::vector<float> values(static_cast<std::size_t>(rows * cols));
    fill_normal(values, 0, 1, 5, stream);
    std::vector<bf16> halves(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) halves[i] = to_bf16(values[i]);
    const void* from = dtype == DType::bf16 ? static_cast<const void*>(halves.data()) : values.data();
    gpu_->upload(t.data, from, t.shape().bytes());
    gpu_->synchronize();
    return t;
  }

  std::shared_ptr<DeviceRuntime> gpu_;
  Context context_;
  Arena arena_;
  std::int64_t used_ = 0;
  Case shape_;
  std::vector<Tensor> mix_in_, mix_out_, norm_in_, norm_out_, d_norm_out_, d_norm_in_, d_mix_out_, d_mix_in_;
  std::vector<Tensor> sum_in_, sum_out_;
};

constexpr Case kCases[] = {{1, 8, 8},
                           {37, 96, 96},
                           {37, 264, 1},
                           {700, 512, 512},
                           {5, 1032, 1032},
                           {19, 33, 33},
                           {70, 512, 512, true},
                           {1, 8, 8, false, true},
                           {37, 264, 1, false, true},
                           {700, 512, 512, false, true},
                           {5, 1032, 1032, false, true},
                           {19, 33, 33, false, true},
                           {70, 1000, 1000, false, true}};

void expect_near(const std::vector<float>& expected, const std::vector<float>& found, double tolerance) {
  double largest = 0, worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    worst = std::max(worst, std::abs(static_cast<double>(expected[i]) - static_cast<double>(found[i])));
  }
  EXPECT_LE(worst, tolerance * largest);
}

TEST(FusedOnCuda, ForwardHasTheSameBits) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  for (const Case& shape : kCases) {
    MixAndNorm separate(gpu.runtime, shape), together(gpu.runtime, shape);
    separate.forward(false);
    together.forward(true);
    EXPECT_EQ(separate.fetch(separate.x), together.fetch(together.x)) << shape.cols;
    EXPECT_EQ(separate.fetch(separate.y), together.fetch(together.y)) << shape.cols;
    EXPECT_EQ(separate.fetch(separate.h), together.fetch(together.h)) << shape.cols;
    EXPECT_EQ(separate.fetch(separate.rstd), together.fetch(together.rstd)) << shape.cols;
  }
}

// In separate calls, the gradient of y is rounded to bf16 in between: 2^-8 of it.
TEST(FusedOnCuda, BackwardMatchesSeparateCalls) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  for (const Case& shape : kCases) {
    SCOPED_TRACE(shape.cols);
    MixAndNorm separate(gpu.runtime, shape), together(gpu.runtime, shape), again(gpu.runtime, shape);
    for (MixAndNorm* set : {&separate, &together, &again}) {
      set->forward(false);
      set->backward(set != &separate);
    }
    expect_near(separate.fetch(separate.dx), together.fetch(together.dx), 0x1p-7);
    expect_near(separate.fetch(separate.dx0), together.fetch(together.dx0), 0x1p-7);
    expect_near(separate.fetch(separate.dmix), together.fetch(together.dmix), 0x1p-6);
    EXPECT_EQ(together.fetch(together.dx0), again.fetch(again.dx0));
    EXPECT_EQ(together.fetch(together.dmix), again.fetch(again.dmix));
  }
}

}  // namespace
}  // namespace thimble
