// Times every training kernel at its shape in the golf model: bytes, operations, and the fraction
// of a plain copy's bandwidth or of a large product's speed in the same run. Bytes are those of the
// op's contract, each counted once: a fraction above 1 means that a cache helps.
//
//   cuda_kernels_bench [ROWS]      (default 32,768)
#include <fmt/format.h>

#include <charconv>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/table.h"
#include "graph/op.h"
#include "ops/attention.h"
#include "ops/cast.h"
#include "ops/cuda_plugin.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/head_loss.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/residual.h"
#include "ops/rope.h"
#include "ops/table.h"
#include "optim/adam.h"
#include "optim/muon.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace thimble {
namespace {

constexpr std::int64_t kWidth = 512, kHidden = 1024, kHeads = 8, kKvHeads = 4, kVocabulary = 1024,
                       kContext = 1024, kLayers = 9;
constexpr int kCalls = 20, kRepeats = 5;
constexpr std::int64_t kMemory = std::int64_t{8} << 30, kCopied = std::int64_t{256} << 20,
                       kProductSide = 8192;

// Allocates tensors one after the other in one block; clear() frees them for the next case.
class Memory {
 public:
  explicit Memory(const std::shared_ptr<DeviceRuntime>& gpu)
      : gpu_(gpu), arena_(gpu, kMemory, "the tensors of a kernel", "run it with fewer rows") {}

  Tensor floats(std::int64_t rows, std::int64_t cols, DType dtype, float deviation = 1) {
    const Tensor t = place(rows, cols, dtype);
    std::vector<float> values(static_cast<std::size_t>(std::min<std::int64_t>(rows * cols, 1 << 20)));
    fill_normal(values, 0, deviation, 1, static_cast<std::uint64_t>(used_));
    std::vector<bf16> halves(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) halves[i] = to_bf16(values[i]);
    const auto* from = dtype == DType::bf16 ? static_cast<const void*>(halves.data()) : values.data();
    for (std::int64_t done = 0; done < rows * cols; done += std::ssize(values)) {
      const std::int64_t count = std::min<std::int64_t>(std::ssize(values), rows * cols - done);
      gpu_->upload(static_cast<std::byte*>(t.data) + done * dtype_bytes(dtype), from,
                   count * dtype_bytes(dtype));
    }
    gpu_->synchronize();
    return t;
  }
  Tensor integers(const std::vector<std::int32_t>& values) {
    const Tensor t = place(std::ssize(values), 1, DType::i32);
    gpu_->upload(t.data, values.data(), t.shape().bytes());
    gpu_->synchronize();
    return t;
  }
  Tensor place(std::int64_t rows, std::int64_t cols, DType dtype) {
    const std::int64_t bytes = align_up(rows * cols * dtype_bytes(dtype), 256);
    check(used_ + bytes <= kMemory, Hint{"run it with fewer rows"},
          "the tensors of a kernel need more than {}", in_bytes(static_cast<double>(kMemory)));
    const Tensor t{arena_.at(used_), rows, cols, cols, dtype, Device::cuda};
    used_ += bytes;
    return t;
  }
  void clear() { used_ = 0; }

 private:
  std::shared_ptr<DeviceRuntime> gpu_;
  Arena arena_;
  std::int64_t used_ = 0;
};

class Bench {
 public:
  explicit Bench(std::int64_t rows) : rows_(rows), gpu_(open_cuda()), context_(gpu_), memory_(gpu_) {
    cuda_plugin();
    measure_copy();
    measure_product();
  }

  DeviceRuntime& gpu() const { return *gpu_; }
  double copy_bandwidth() const { return copy_bandwidth_; }
  double product_peak() const { return product_peak_; }
  const Table& table() const { return table_; }
  const Context& context() const { return context_; }
  Memory& memory() { return memory_; }
  std::int64_t rows() const { return rows_; }
  Tensor wide(std::int64_t cols) { return memory_.floats(rows_, cols, DType::bf16); }
  Tensor vector(std::int64_t cols, std::int64_t count = 1) { return memory_.floats(count, cols, DType::f32); }

  void add_line(const std::string& name, double us, double bytes, double flops) {
    const double bandwidth = bytes / us * 1e6, speed = flops / us * 1e6;
    table_.row({name, fmt::format("{:.1f}", us), fmt::format("{:.1f}", bytes / 1e6),
                fmt::format("{:.0f}", bandwidth / 1e9), fmt::format("{:.2f}", bandwidth / copy_bandwidth_),
                flops > 0 ? fmt::format("{:.1f}", flops / 1e9) : "",
                flops > 0 ? fmt::format("{:.0f}", speed / 1e12) : "",
                flops > 0 ? fmt::format("{:.2f}", speed / product_peak_) : ""});
  }

  // Times forward and backward. `f32_gradient`: the input with an f32 gradient that is added to.
  void time(const char* name, const OpDefinition* op, std::vector<Tensor> in, const Attributes& attributes,
            int f32_gradient = -1) {
    const OpDefinition& def = *op;
    const Kernels& kernels = *cuda_backend().find(def);
    std::vector<Shape> shapes;
    for (const Tensor& tensor : in) shapes.push_back(tensor.shape());
    std::vector<Tensor> out, d_out, d_in;
    for (const Shape& shape : def.shapes(shapes, attributes)) {
      out.push_back(memory_.place(shape.rows, shape.cols, shape.dtype));
      d_out.push_back(def.loss ? Tensor{} : memory_.floats(shape.rows, shape.cols, shape.dtype));
    }
    OpCall call{.in = in, .out = out, .d_out = {}, .d_in = {}, .attributes = attributes, .scratch = {}};
    call.scratch = memory_.place(
        1, std::max<std::int64_t>(1, cuda_backend().scratch_bytes(def, shapes, attributes)), DType::u8);
    line(name, def, call, kernels.forward, call);
    for (std::size_t i = 0; i < in.size(); ++i) {
      const bool wanted = in[i] && def.input_is(i, is::differentiable);
      const bool parameter = def.input_is(i, is::parameter), wide = static_cast<int>(i) == f32_gradient;
      d_in.push_back(wanted
                         ? memory_.place(in[i].rows, in[i].cols, parameter || wide ? DType::f32 : in[i].dtype)
                         : Tensor{});
      if (parameter || wide) call.add |= 1u << i;
    }
    call.d_out = d_out;
    call.d_in = d_in;
    std::vector<Tensor> read_in = in, read_out = out;  // those that backward reads
    for (std::size_t i = 0; i < in.size(); ++i)
      if (!def.input_is(i, is::saved)) read_in[i] = {};
    for (std::size_t i = 0; i < out.size(); ++i)
      if (!def.loss && !def.saves_output(i)) read_out[i] = {};
    OpCall moved = call;
    moved.in = read_in;
    moved.out = read_out;
    line(fmt::format("{}, backward", name), def, call, kernels.backward, moved);
    memory_.clear();
  }

  template <class Body>
  double microseconds(Body body) {
    body();
    std::vector<double> times;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      const auto before = gpu_->make_event(), after = gpu_->make_event();
      before->record();
      for (int call = 0; call < kCalls; ++call) body();
      after->record();
      after->wait();
      times.push_back(1e3 * after->milliseconds_since(*before) / kCalls);
    }
    return median(times);
  }

 private:
  void measure_copy() {
    const Tensor from = memory_.place(1, kCopied, DType::u8), to = memory_.place(1, kCopied, DType::u8);
    copy_bandwidth_ = 2.0 * kCopied / microseconds([&] { gpu_->copy(to.data, from.data, kCopied); }) * 1e6;
    memory_.clear();
  }

  void measure_product() {
    const std::array in = {memory_.floats(kProductSide, kProductSide, DType::bf16),
                           memory_.floats(kProductSide, kProductSide, DType::bf16)};
    const std::array out = {memory_.place(kProductSide, kProductSide, DType::bf16)};
    const OpDefinition& def = op::kLinear;
    const OpCall call{.in = in, .out = out, .d_out = {}, .d_in = {}, .attributes = {}, .scratch = {}};
    const Kernel kernel = cuda_backend().find(def)->forward;
    product_peak_ = work_of(def, call).flops / microseconds([&] { kernel(context_, call); }) * 1e6;
    memory_.clear();
  }

  // Bytes are counted over the tensors in `moved`.
  void line(const std::string& name, const OpDefinition& def, const OpCall& call, Kernel kernel,
            const OpCall& moved) {
    double flops = work_of(def, call).flops;
    if (&def == &op::kAttention)  // row n of a context attends to n + 1 rows; as in graph/op.h
      flops = static_cast<double>(rows_ * (kContext + 1) * kWidth) * (call.d_in.empty() ? 2 : 4);
    add_line(name, microseconds([&] { kernel(context_, call); }), work_of(def, moved).bytes, flops);
  }

  std::int64_t rows_;
  std::shared_ptr<DeviceRuntime> gpu_;
  Context context_;
  Memory memory_;
  double copy_bandwidth_ = 0, product_peak_ = 0;
  Table table_{{"kernel", "us", "MB", "GB/s", "of a copy", "GFLOP", "TFLOP/s", "of a product"}};
};

void time_products(Bench& bench) {
  struct Product {
    const char* name;
    std::int64_t in, out;
  };
  for (const Product& p :
       {Product{"linear 512 -> 1024", kWidth, kHidden}, Product{"linear 512 -> 512", kWidth, kWidth},
        Product{"linear 1024 -> 512", kHidden, kWidth}})
    bench.time(p.name, &op::kLinear, {bench.wide(p.in), bench.memory().floats(p.out, p.in, DType::bf16)}, {});
}

void time_heads(Bench& bench) {
  const std::int64_t D = kWidth / kHeads;
  std::vector<std::int32_t> position, first;
  for (std::int64_t n = 0; n < bench.rows(); ++n) {
    position.push_back(static_cast<std::int32_t>(n % kContext));
    first.push_back(static_cast<std::int32_t>(n - n % kContext));
  }
  struct Turned {
    const char* name;
    std::int64_t heads;
    bool gain;
  };
  for (const Turned& t : {Turned{"rope, 8 heads", kHeads, true}, Turned{"rope, 4 heads", kKvHeads, false}})
    bench.time(t.name, &op::kRope,
               {bench.wide(t.heads * D), bench.memory().integers(position), bench.vector(D, kContext),
                t.gain ? bench.vector(t.heads) : Tensor{}},
               RopeAttributes{static_cast<std::int32_t>(t.heads), true, 1e-6f});
  bench.time("attention, T = 1024", &op::kAttention,
             {bench.wide(kWidth), bench.wide(kKvHeads * D), bench.wide(kKvHeads * D),
              bench.memory().integers(first)},
             AttentionAttributes{kHeads, kKvHeads, 0.125f});
}

void time_rows(Bench& bench) {
  bench.time("rmsnorm", &op::kRmsNorm, {bench.wide(kWidth)}, RmsNormAttributes{});
  bench.time("residual_mix", &op::kResidualMix,
             {bench.wide(kWidth), bench.wide(kWidth), bench.vector(kWidth, 2)}, {}, 1);
  bench.time("residual_norm", &op::kResidualNorm,
             {bench.wide(kWidth), bench.wide(kWidth), bench.vector(kWidth)}, ResidualNormAttributes{});
  bench.time("add_scaled", &op::kAddScaled, {bench.wide(kWidth), bench.wide(kWidth), bench.vector(kWidth)},
             AddScaledAttributes{});
  bench.time("activation, relu2", &op::kActivation, {bench.wide(kHidden)},
             ActivationAttributes{ActivationKind::relu2});
}

// residual_mix and the norm after it, fused as in programs; also with the sum before it.
void time_fused(Bench& bench) {
  const Tensor x = bench.wide(kWidth), x0 = bench.wide(kWidth), mix = bench.vector(kWidth, 2),
               y = bench.wide(kWidth), h = bench.wide(kWidth), rstd = bench.vector(1, bench.rows()),
               dh = bench.wide(kWidth), dy = bench.wide(kWidth), dx = bench.wide(kWidth),
               dx0 = bench.vector(kWidth, bench.rows()), dmix = bench.vector(kWidth, 2);
  const std::vector<Tensor> mix_in = {x, x0, mix}, mix_out = {y}, norm_in = {y}, norm_out = {h, rstd};
  const std::vector<Tensor> d_norm_out = {dh}, d_norm_in = {dy}, d_mix_out = {dy}, d_mix_in = {dx, dx0, dmix};
  const Tensor scratch = bench.memory().place(1, 64 << 20, DType::u8);
  const OpCall mixes{
      .in = mix_in, .out = mix_out, .d_out = {}, .d_in = {}, .attributes = {}, .scratch = scratch};
  const OpCall norms{.in = norm_in,
                     .out = norm_out,
                     .d_out = {},
                     .d_in = {},
                     .attributes = RmsNormAttributes{},
                     .scratch = scratch};
  OpCall mixes_back = mixes, norms_back = norms;
  mixes_back.d_out = d_mix_out, mixes_back.d_in = d_mix_in, mixes_back.add = 6;
  norms_back.d_out = d_norm_out, norms_back.d_in = d_norm_in, norms_back.add = 1;
  const auto rows = static_cast<double>(x.shape().bytes());
  const std::vector<Tensor> sum_in = {bench.wide(kWidth), bench.wide(kWidth), bench.vector(kWidth)},
                            sum_out = {x};
  const OpCall sums{.in = sum_in,
                    .out = sum_out,
                    .d_out = {},
                    .d_in = {},
                    .attributes = AddScaledAttributes{},
                    .scratch = scratch};
  const auto time = [&](const char* name, bool backward, const std::vector<const OpDefinition*>& ops,
                        const std::vector<const OpCall*>& calls, double moved) {
    const FusedKernel kernel = cuda_backend().fused(ops, backward);
    bench.add_line(name, bench.microseconds([&] { kernel(bench.context(), calls); }), moved * rows, 0);
  };
  time("residual_mix, rmsnorm", false, {&op::kResidualMix, &op::kRmsNorm}, {&mixes, &norms}, 4);
  time("residual_mix, rmsnorm, backward", true, {&op::kRmsNorm, &op::kResidualMix},
       {&norms_back, &mixes_back}, 9);
  time("add_scaled, residual_mix, rmsnorm", false, {&op::kAddScaled, &op::kResidualMix, &op::kRmsNorm},
       {&sums, &mixes, &norms}, 6);
  bench.memory().clear();
}

// Ops that the golf model does not use.
void time_others(Bench& bench) {
  std::vector<std::int32_t> previous, rows;
  for (std::int64_t n = 0; n < bench.rows(); ++n) {
    previous.push_back(static_cast<std::int32_t>(n % kContext == 0 ? -1 : n - 1));
    rows.push_back(static_cast<std::int32_t>(bench.rows() - 1 - n));
  }
  bench.time("layernorm", &op::kLayerNorm, {bench.wide(kWidth), bench.vector(kWidth), bench.vector(kWidth)},
             LayerNormAttributes{});
  bench.time("gated_skip", &op::kGatedSkip,
             {bench.wide(kWidth), bench.wide(kWidth), bench.vector(kWidth), bench.vector(kWidth)}, {});
  bench.time("smear", &op::kSmear,
             {bench.wide(kWidth), bench.vector(kWidth), bench.memory().integers(previous)}, {});
  bench.time("dropout", &op::kDropout, {bench.wide(kWidth), bench.memory().integers({1, 2})},
             DropoutAttributes{0.1f, 0});
  bench.time("gather", &op::kGather, {bench.wide(kWidth), bench.memory().integers(rows)}, {});
  bench.time("softcap", &op::kSoftcap, {bench.wide(kVocabulary)}, SoftcapAttributes{});
  bench.time("exclusive_attention", &op::kExclusiveAttention,
             {bench.wide(kWidth), bench.wide(kWidth * kKvHeads / kHeads)},
             ExclusiveAttributes{kHeads, kKvHeads});
}

// Work per step, independent of rows: weight copies, gradient norm, Adam (on all weights), Muon.
void time_steps(Bench& bench) {
  const Tensor matrix = bench.vector(kWidth, kHidden);
  bench.time("cast of a matrix", &op::kCast, {matrix}, CastAttributes{DType::bf16});
  bench.time("fake_quant of a matrix", &op::kFakeQuant, {bench.vector(kWidth, kHidden)},
             FakeQuantAttributes{8, DType::bf16});

  const StepKernels& step = cuda_plugin().step;
  const std::int64_t count = kLayers * kWidth * (2 * kHidden + kHidden + kWidth);
  const auto place = [&](std::int64_t bytes) {
    return static_cast<std::byte*>(bench.memory().place(1, bytes, DType::u8).data);
  };
  const auto floats = [&] { return static_cast<float*>(bench.vector(count).data); };
  float *const weights = floats(), *const gradients = floats(), *const first = floats();
  auto* const second = reinterpret_cast<float*>(place(count * std::int64_t{sizeof(float)}));
  StepState state;
  state.grad_scale = 1;
  state.finite = 1;
  auto* const on_gpu = reinterpret_cast<StepState*>(place(sizeof state));
  std::byte* const sums = place(step.sum_scratch_bytes(count));
  const auto size = static_cast<double>(count * std::int64_t{sizeof(float)});
  bench.add_line("the gradient's norm", bench.microseconds([&] {
    step.finish_norm(bench.context(), gradients, count, on_gpu, nullptr, sums);
  }),
                 size, 0);

  bench.gpu().upload(on_gpu, &state, sizeof state);
  const auto on_gpu_copy = [&](const void* from, std::size_t bytes) {
    std::byte* const to = place(static_cast<std::int64_t>(bytes));
    bench.gpu().upload(to, from, static_cast<std::int64_t>(bytes));
    bench.gpu().synchronize();
    return to;
  };
  RuleCall call{.state = on_gpu, .memory = {weights, gradients, {first, second}}};
  std::vector<AdamChunk> chunks;
  for (std::int64_t begin = 0; begin < count; begin += kAdamChunk)
    chunks.push_back(
        {begin, begin, begin, static_cast<std::int32_t>(std::min(kAdamChunk, count - begin)), 0});
  const AdamSettings adam_settings{};
  call.settings = on_gpu_copy(&adam_settings, sizeof adam_settings);
  call.item_bytes = static_cast<std::int64_t>(chunks.size() * sizeof(AdamChunk));
  call.items = on_gpu_copy(chunks.data(), chunks.size() * sizeof(AdamChunk));
  bench.add_line("Adam", bench.microseconds([&] { step.find("adam")->update(bench.context(), call); }),
                 7 * size, 0);

  struct Matrices {
    std::int64_t rows, cols, count;
  };
  const MuonSettings muon_settings{};
  call.settings = on_gpu_copy(&muon_settings, sizeof muon_settings);
  for (const Matrices& m : {Matrices{kWidth, kWidth, 2 * kLayers}, Matrices{kWidth / 2, kWidth, 2 * kLayers},
                            Matrices{kHidden, kWidth, kLayers}, Matrices{kWidth, kHidden, kLayers}}) {
    std::vector<MuonMatrix> matrices;
    for (std::int64_t i = 0; i < m.count; ++i)
      matrices.push_back({i * m.rows * m.cols, i * m.rows * m.cols, 0});
    const MuonPlan plan{.batches = {{.rows = m.rows, .cols = m.cols, .first = 0, .count = m.count}},
                        .rounds = std::vector<NewtonSchulzCoefficients>(kNewtonSchulzSteps),
                        .dtype = DType::bf16};
    const RuleKernels& muon = *step.find("muon");
    call.item_bytes = static_cast<std::int64_t>(matrices.size() * sizeof(MuonMatrix));
    call.items = on_gpu_copy(matrices.data(), matrices.size() * sizeof(MuonMatrix));
    call.plan = &plan;
    call.scratch = place(muon.scratch_bytes(call));
    const auto small = static_cast<double>(std::min(m.rows, m.cols)),
               large = static_cast<double>(std::max(m.rows, m.cols)), all = static_cast<double>(m.count);
    bench.add_line(fmt::format("Muon, {} of {} x {}", m.count, m.rows, m.cols),
                   bench.microseconds([&] { muon.update(bench.context(), call); }),
                   5 * 4 * all * small * large,
                   all * kNewtonSchulzSteps * (4 * small * small * large + 2 * small * small * small));
  }
  bench.memory().clear();
}

void time_ends(Bench& bench) {
  std::vector<std::int32_t> token(static_cast<std::size_t>(bench.rows()));
  Rng random(1);
  for (std::int32_t& t : token) t = static_cast<std::int32_t>(random.below(kVocabulary));
  std::vector<std::int32_t> order(token.size());
  sort_rows(token, kVocabulary, order);
  bench.time("embedding", &op::kEmbedding,
             {bench.memory().floats(kVocabulary, kWidth, DType::bf16), bench.memory().integers(token),
              bench.memory().integers(order)},
             EmbeddingAttributes{false, DType::bf16});
  bench.time("head_loss, V = 1024", &op::kHeadLoss,
             {bench.wide(kWidth), bench.memory().floats(kVocabulary, kWidth, DType::bf16, 0.02f),
              bench.memory().integers(token), bench.vector(1, bench.rows())},
             HeadLossAttributes{30, 1 << 20});
}

void run(std::int64_t rows) {
  Bench bench(rows);
  time_products(bench);
  time_heads(bench);
  time_rows(bench);
  time_fused(bench);
  time_ends(bench);
  time_steps(bench);
  time_others(bench);
  fmt::print("{}, {} rows, bf16: a copy reaches {:.0f} GB/s, a product of {} cubed {:.0f} TFLOP/s\n{}",
             bench.gpu().facts().name, with_commas(rows), bench.copy_bandwidth() / 1e9, kProductSide,
             bench.product_peak() / 1e12, bench.table().text());
}

std::int64_t rows_of(std::string_view text) {
  std::int64_t rows = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rows);
  check(error == std::errc{} && end == text.data() + text.size() && rows > 0,
        "expected a number of rows, found '{}'", text);
  return rows;
}

}  // namespace
}  // namespace thimble

int main(int count, char** arguments) {
  try {
    thimble::run(count > 1 ? thimble::rows_of(arguments[1]) : 32768);
  } catch (const thimble::Error& error) {
    fmt::print(stderr, "{}\n", thimble::describe(error));
    return 1;
  }
}
