// The speed of every CPU kernel next to the machine's ceiling, measured in the same run:
//
//   kernels_bench [--dtype bf16|f32] [--only NAME] [--repeats N] [--clock wall|cpu]
//
// Ops that move memory: GB/s of the bytes that the formula must touch, each tensor once, compared
// with a copy of as many bytes, for a working set that fits into the caches and for one that does
// not. Products: GFLOP/s compared with bare GEMMs of the same size. Figures are medians; ours and
// the ceiling take turns, so a busy machine slows both. On a very busy machine, --clock cpu
// measures processor time per thread instead (memory ops only).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <numeric>

#include "base/clock.h"
#include "base/error.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "base/table.h"
#include "graph/op.h"
#include "ops/attention.h"
#include "ops/cast.h"
#include "ops/cpu/gemm.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/head_loss.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/residual.h"
#include "ops/rope.h"
#include "ops/sums.h"
#include "ops/table.h"
#include "optim/adam.h"
#include "tensor/arena.h"

namespace thimble {

namespace {

struct Options {
  DType dtype = DType::bf16;
  std::string only;
  int repeats = 15;
  bool cpu_clock = false;
};

constexpr char kUsage[] = "kernels_bench [--dtype bf16|f32] [--only NAME] [--repeats N] [--clock wall|cpu]";

Options parse(int argc, char** argv) {
  Options options;
  check(argc % 2 == 1, "usage: {}", kUsage);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i], value = argv[i + 1];
    if (name == "--dtype" && (value == "f32" || value == "bf16"))
      options.dtype = value == "f32" ? DType::f32 : DType::bf16;
    else if (name == "--only")
      options.only = value;
    else if (name == "--clock" && (value == "wall" || value == "cpu"))
      options.cpu_clock = value == "cpu";
    else if (name == "--repeats" && std::atoi(argv[i + 1]) > 0)
      options.repeats = std::atoi(argv[i + 1]);
    else
      fail("unknown option {} {}; usage: {}", name, value, kUsage);
  }
  return options;
}

// The golf preset's sizes.
constexpr std::int64_t kWidth = 512, kHeads = 8, kKvHeads = 4, kHeadSize = 64, kHidden = 1024, kVocab = 1024;
constexpr std::int64_t kContext = 1024;

struct Input {
  Shape shape;
  std::vector<std::int32_t> integers = {};
};

struct Case {
  std::string name;
  const OpDefinition* op;
  std::vector<Input> in;
  Attributes attributes = {};
};

Input integers(std::vector<std::int32_t> values) {
  return {{static_cast<std::int64_t>(values.size()), 1, DType::i32}, std::move(values)};
}

template <class Value>
std::vector<std::int32_t> each_row(std::int64_t N, Value value) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(N));
  for (std::int64_t n = 0; n < N; ++n)
    values[static_cast<std::size_t>(n)] = static_cast<std::int32_t>(value(n));
  return values;
}

// Ops that move memory, on N rows.
std::vector<Case> row_cases(std::int64_t N, DType dtype) {
  const Input rows{{N, kWidth, dtype}}, vector{{1, kWidth}}, hidden{{N, kHidden, dtype}};
  const Input queries{{N, kHeads * kHeadSize, dtype}}, turns{{kContext, kHeadSize}};
  const Input positions = integers(each_row(N, [](auto n) { return n % kContext; }));
  // Visits each row of a table as long as the batch once, scattered (N is a power of two).
  const std::vector<std::int32_t> tokens = each_row(N, [&](auto n) { return n * 40503 % N; });
  std::vector<std::int32_t> order(tokens.size());
  sort_rows(tokens, N, order);
  return {
      {"embedding", &op::kEmbedding, {{{N, kWidth, dtype}}, integers(tokens), integers(order)}},
      {"smear", &op::kSmear, {rows, vector, integers(each_row(N, [](auto n) { return n - 1; }))}},
      {"rmsnorm", &op::kRmsNorm, {rows}, RmsNormAttributes{}},
      {"rmsnorm weight", &op::kRmsNorm, {rows, vector}, RmsNormAttributes{}},
      {"layernorm", &op::kLayerNorm, {rows, vector, vector}, LayerNormAttributes{}},
      {"rope norm gain",
       &op::kRope,
       {queries, positions, turns, {{1, kHeads}}},
       RopeAttributes{static_cast<std::int32_t>(kHeads), true, 1e-6f}},
      {"exclusive_attention",
       &op::kExclusiveAttention,
       {queries, {{N, kKvHeads * kHeadSize, dtype}}},
       ExclusiveAttributes{static_cast<std::int32_t>(kHeads), static_cast<std::int32_t>(kKvHeads)}},
      {"relu2", &op::kActivation, {hidden}, ActivationAttributes{ActivationKind::relu2}},
      {"gelu", &op::kActivation, {hidden}, ActivationAttributes{ActivationKind::gelu}},
      {"swiglu", &op::kActivation, {{{N, 2 * kHidden, dtype}}}, ActivationAttributes{ActivationKind::swiglu}},
      {"add_scaled", &op::kAddScaled, {rows, rows, vector}, AddScaledAttributes{}},
      {"residual_mix", &op::kResidualMix, {rows, rows, {{2, kWidth}}}},
      {"residual_norm", &op::kResidualNorm, {rows, rows, vector}, ResidualNormAttributes{}},
      {"gated_skip", &op::kGatedSkip, {rows, rows, vector, vector}},
      {"dropout", &op::kDropout, {rows, integers({1, 2})}, DropoutAttributes{0.1f, 0}},
      {"gather", &op::kGather, {rows, integers(each_row(N, [](auto n) { return n; }))}},
      {"softcap", &op::kSoftcap, {{{N, kVocab, dtype}}}, SoftcapAttributes{}},
      {"cast to bf16", &op::kCast, {{{N, kWidth}}}, CastAttributes{DType::bf16}},
      {"cast to f32", &op::kCast, {{{N, kWidth, DType::bf16}}}, CastAttributes{DType::f32}},
      {"fake_quant 8", &op::kFakeQuant, {{{N, kWidth}}}, FakeQuantAttributes{8, dtype}},
      {"fake_quant 6", &op::kFakeQuant, {{{N, kWidth}}}, FakeQuantAttributes{6, dtype}},
  };
}

// Ops that multiply matrices.
std::vector<Case> product_cases(std::int64_t N, DType dtype) {
  const Input rows{{N, kWidth, dtype}}, keys{{N, kKvHeads * kHeadSize, dtype}};
  const auto weight = [&](std::int64_t outputs, std::int64_t inputs) {
    return Input{{outputs, inputs, dtype}};
  };
  return {
      {"linear q;k;v", &op::kLinear, {rows, weight((kHeads + 2 * kKvHeads) * kHeadSize, kWidth)}},
      {"linear proj", &op::kLinear, {rows, weight(kWidth, kWidth)}},
      {"linear fc", &op::kLinear, {rows, weight(kHidden, kWidth)}},
      {"linear mlp proj", &op::kLinear, {{{N, kHidden, dtype}}, weight(kWidth, kHidden)}},
      {"attention",
       &op::kAttention,
       {rows, keys, keys, integers(each_row(N, [](auto n) { return n / kContext * kContext; }))},
       AttentionAttributes{static_cast<std::int32_t>(kHeads), static_cast<std::int32_t>(kKvHeads), 0.125f}},
      {"head_loss",
       &op::kHeadLoss,
       {rows, weight(kVocab, kWidth), integers(each_row(N, [](auto n) { return n * 7 % kVocab; })), {{N, 1}}},
       HeadLossAttributes{30, 1024}},
  };
}

// A case bound to memory. Backward has the tensors that the op saves. Gradients are written; those
// of parameters are added to.
class BoundCase {
 public:
  explicit BoundCase(const Case& c) : def_(*c.op) {
    std::vector<Shape> shapes;
    for (const Input& input : c.in) shapes.push_back(input.shape);
    const std::vector<Shape> outputs = def_.shapes(shapes, c.attributes);
    for (const Input& input : c.in) in_.push_back(filled(input));
    for (const Shape& shape : outputs) out_.push_back(reserved(shape));
    const Tensor scratch = reserved(
        {1, std::max<std::int64_t>(1, cpu_backend().scratch_bytes(def_, shapes, c.attributes)), DType::u8});
    forward_ = {
        .in = in_, .out = out_, .d_out = {}, .d_in = {}, .attributes = c.attributes, .scratch = scratch};
    if (!kernels().backward) return;
    saved_in_ = in_, saved_out_ = out_;
    std::uint32_t added = 0;  // bit i: add to the gradient of input i
    for (std::size_t i = 0; i < in_.size(); ++i) {
      if (!def_.input_is(i, is::saved)) saved_in_[i].data = nullptr;
      Shape shape = shapes[i];
      const bool parameter = def_.input_is(i, is::parameter);
      if (parameter) shape.dtype = statistic_dtype(shape.dtype), added |= 1u << i;
      d_in_.push_back(def_.input_is(i, is::differentiable) ? reserved(shape) : Tensor{});
    }
    for (std::size_t i = 0; i < out_.size(); ++i) {
      if (!def_.saves_output(i) && !def_.loss) saved_out_[i].data = nullptr;
      // Statistics have one or few columns and no gradient.
      const bool graded = !def_.loss && outputs[i].cols > kHeads;
      d_out_.push_back(graded ? filled({outputs[i]}) : Tensor{});
    }
    backward_ = {saved_in_, saved_out_, d_out_, d_in_, added, c.attributes, scratch};
  }

  const Kernels& kernels() const { return *cpu_backend().find(def_); }
  bool has_backward() const { return kernels().backward != nullptr; }
  Work work(bool backward) const { return work_of(def_, backward ? backward_ : forward_); }

  void run(bool backward) const {
    const OpCall& call = backward ? backward_ : forward_;
    (backward ? kernels().backward : kernels().forward)(context_, call);
  }

 private:
  Tensor reserved(const Shape& shape) {
    arenas_.emplace_back(shape.bytes(), "a tensor of the benchmark", "fewer rows");
    return {arenas_.back().at(0), shape.rows, shape.cols, shape.cols, shape.dtype, Device::cpu};
  }

  Tensor filled(const Input& input) {
    const Tensor tensor = reserved(input.shape);
    if (!input.integers.empty()) {
      std::memcpy(tensor.data, input.integers.data(), input.integers.size() * sizeof(std::int32_t));
      return tensor;
    }
    std::vector<float> row(static_cast<std::size_t>(tensor.cols));
    for (std::int64_t n = 0; n < tensor.rows; ++n) {
      fill_normal(row, 0, 1, 7, static_cast<std::uint64_t>(n));
      for (std::size_t c = 0; c < row.size(); ++c)
        if (tensor.dtype == DType::bf16)
          tensor.row<bf16>(n)[c] = to_bf16(row[c]);
        else
          tensor.row<float>(n)[c] = row[c];
    }
    return tensor;
  }

  const OpDefinition& def_;
  Context context_;
  std::vector<Arena> arenas_;
  std::vector<Tensor> in_, out_, saved_in_, saved_out_, d_in_, d_out_;
  OpCall forward_, backward_;
};

class Clock {
 public:
  explicit Clock(bool cpu = false) : cpu_(cpu) {}

  double seconds_of(const std::function<void()>& work, int times = 1) const {
    const double start = now();
    for (int i = 0; i < times; ++i) work();
    return (now() - start) / times;
  }

 private:
  double now() const {
    timespec time{};
    clock_gettime(cpu_ ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    const double seconds = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    return cpu_ ? seconds / max_threads() : seconds;
  }

  bool cpu_;
};

struct Pair {
  double ours, ceiling;  // seconds
};

// Measures ours and the ceiling in turns. Short work is repeated within a turn.
Pair measure(const std::function<void()>& ours, const std::function<void()>& ceiling,
             const Options& options) {
  constexpr double kTurn = 1e-3;
  const Clock clock(options.cpu_clock);
  const auto times = [&](const std::function<void()>& work) {
    work();
    return std::clamp(static_cast<int>(kTurn / clock.seconds_of(work)), 1, 1000);
  };
  const int our_times = times(ours), ceiling_times = times(ceiling);
  std::vector<double> our_seconds, ceiling_seconds;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    our_seconds.push_back(clock.seconds_of(ours, our_times));
    ceiling_seconds.push_back(clock.seconds_of(ceiling, ceiling_times));
  }
  return {median(our_seconds), median(ceiling_seconds)};
}

// A copy that reads and writes `bytes` in total, divided among threads as in kernels.
class Copy {
 public:
  explicit Copy(double bytes)
      : half_(align_up(std::max<std::int64_t>(kAlignment, static_cast<std::int64_t>(bytes / 2)))),
        memory_(2 * half_, "the copy", "fewer rows") {}

  void run() const {
    constexpr std::int64_t kPart = 16384;
    parallel_for(half_, kPart, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(memory_.at(half_ + begin), memory_.at(begin), static_cast<std::size_t>(end - begin));
    });
  }

 private:
  std::int64_t half_;
  Arena memory_;
};

class Report {
 public:
  explicit Report(std::string unit)
      : unit_(std::move(unit)), table_({"op", "", "working set", unit_, "ceiling", "fraction"}) {}

  void row(const std::string& name, std::string_view phase, double bytes, double work, const Pair& seconds,
           double ceiling_work) {
    const double ours = work / seconds.ours / 1e9, ceiling = ceiling_work / seconds.ceiling / 1e9;
    table_.row({name, std::string(phase), in_bytes(bytes), fmt::format("{:.1f}", ours),
                fmt::format("{:.1f}", ceiling), fmt::format("{:.2f}", ours / ceiling)});
  }
  std::string text() const { return table_.text(); }

 private:
  std::string unit_;
  Table table_;
};

constexpr std::string_view kPhases[] = {"forward", "backward"};

void bench_rows(const Options& options, std::int64_t N, Report& report) {
  for (const Case& c : row_cases(N, options.dtype)) {
    if (c.name.find(options.only) == std::string::npos) continue;
    const BoundCase bound(c);
    bound.run(false);
    for (const bool backward : {false, true}) {
      if (backward && !bound.has_backward()) continue;
      const double bytes = bound.work(backward).bytes;
      const Copy copy(bytes);
      report.row(c.name, kPhases[backward], bytes, bytes,
                 measure([&] { bound.run(backward); }, [&] { copy.run(); }, options), bytes);
    }
  }
}

// The optimizer's passes over f32 ranges, which are not ops of the tape.
void bench_optimizer(const Options& options, std::int64_t count, Report& report) {
  std::vector<float> p(static_cast<std::size_t>(count), 1), g = p, m = p, v = p;
  const auto against_copy = [&](const std::string& name, double bytes, const std::function<void()>& work) {
    if (name.find(options.only) == std::string::npos) return;
    const Copy copy(bytes);
    report.row(name, "", bytes, bytes,
               measure(
                   work, [&] { copy.run(); }, options),
               bytes);
  };
  const double run = static_cast<double>(count) * sizeof(float);
  against_copy("adam", 7 * run, [&] { cpu::adam({.lr = 1e-3f}, p, g, m, v); });
  against_copy("sum_of_squares", run, [&] { cpu::sum_of_squares(g); });
}

void bench_products(const Options& options, std::int64_t N, Report& report) {
  const Context context;
  const std::vector<ProductShape> shapes = {{kWidth, kWidth}, {kHidden, kWidth}, {kWidth, kHidden}};
  const double flops = flops_of_products(shapes, N);
  for (const Case& c : product_cases(N, options.dtype)) {
    if (c.name.find(options.only) == std::string::npos) continue;
    const BoundCase bound(c);
    bound.run(false);
    for (const bool backward : {false, true}) {
      if (backward && !bound.has_backward()) continue;
      const Work work = bound.work(backward);
      std::vector<double> ours, ceiling;
      for (int repeat = 0; repeat < options.repeats; ++repeat) {
        ours.push_back(Clock().seconds_of([&] { bound.run(backward); }));
        ceiling.push_back(cpu::seconds_of_products(context, shapes, N, options.dtype, 1));
      }
      report.row(c.name, kPhases[backward], work.bytes, work.flops, {median(ours), median(ceiling)}, flops);
    }
  }
}

void run(const Options& options) {
  Report bandwidth("GB/s"), products("GFLOP/s");
  constexpr std::int64_t kCachedRows = 512, kRows = 32768, kProductRows = 8192;
  for (const std::int64_t N : {kCachedRows, kRows}) {
    bench_rows(options, N, bandwidth);
    bench_optimizer(options, N * kWidth / 4, bandwidth);
  }
  if (!options.cpu_clock) bench_products(options, kProductRows, products);
  fmt::print("{}, {} threads, medians of {}\n{}\n{}", dtype_name(options.dtype), max_threads(),
             options.repeats, bandwidth.text(), products.text());
}

}  // namespace

}  // namespace thimble

int main(int argc, char** argv) {
  try {
    thimble::run(thimble::parse(argc, argv));
  } catch (const thimble::Error& error) {
    fmt::print(stderr, "{}\n", thimble::describe(error));
    return 1;
  }
}
