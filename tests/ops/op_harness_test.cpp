#include "ops/op_harness.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/tolerances.h"
#include "tensor/arena.h"

namespace thimble {

namespace {

constexpr std::byte kSentinel{0xFF};
constexpr std::size_t kGuardBytes = 256;
constexpr std::size_t kSmallTensor = 64;

// The shape of a case's tensor in the number type under test.
Shape shape_in(const Values& values, DType dtype) {
  return {values.shape.rows, values.shape.cols, values.integers() ? values.shape.dtype : dtype};
}

DType dtype_of_storing(Storing storing) {
  return storing == Storing::bf16 ? DType::bf16 : storing == Storing::f16 ? DType::f16 : DType::i8;
}

DType full_if(bool full, DType dtype) {
  return full ? statistic_dtype(dtype) : dtype;
}

template <class T>
constexpr bool kHalf = std::is_same_v<T, bf16> || std::is_same_v<T, f16>;

std::vector<Tensor> tensors_of(const std::vector<GuardedTensor>& guarded) {
  std::vector<Tensor> tensors;
  for (const GuardedTensor& one : guarded) tensors.push_back(one.tensor());
  return tensors;
}

// Device copies of a call's tensors and guards: uploaded before the kernel, downloaded after it.
class DeviceCopy {
 public:
  explicit DeviceCopy(std::shared_ptr<DeviceRuntime> runtime) : runtime_(std::move(runtime)) {}

  // `device_tensor` is the tensor that the kernel receives instead.
  void add(const GuardedTensor& tensor, Tensor& device_tensor) {
    if (!tensor) return;
    parts_.push_back({tensor.memory(), &device_tensor, bytes_});
    bytes_ += align_up(static_cast<std::int64_t>(tensor.memory().size()), 256);
  }

  void send() {
    arena_ = Arena(runtime_, bytes_, "a test", "test fewer rows");
    for (const Part& part : parts_) {
      runtime_->upload(arena_.at(part.offset), part.host.data(), static_cast<std::int64_t>(part.host.size()));
      part.device_tensor->data =
          arena_.at(part.offset) + (part.device_tensor->begin_bytes() - part.host.data());
      part.device_tensor->device = runtime_->device();
    }
  }

  void fetch() {
    for (const Part& part : parts_)
      runtime_->download(part.host.data(), arena_.at(part.offset),
                         static_cast<std::int64_t>(part.host.size()));
    runtime_->synchronize();
  }

 private:
  struct Part {
    std::span<std::byte> host;
    Tensor* device_tensor;
    std::int64_t offset;
  };
  std::shared_ptr<DeviceRuntime> runtime_;
  std::vector<Part> parts_;
  std::int64_t bytes_ = 0;
  Arena arena_;
};

double length(const std::vector<double>& numbers) {
  double squares = 0;
  for (double number : numbers) squares += number * number;
  return std::sqrt(squares);
}

bool all_finite(const std::vector<double>& numbers) {
  return std::ranges::all_of(numbers, [](double number) { return std::isfinite(number); });
}

constexpr std::size_t kPage = 4096;

// Memory of whole pages, followed by an inaccessible guard page.
std::shared_ptr<std::byte[]> memory_before_guard_page(std::size_t bytes) {
  void* block = mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(block != MAP_FAILED, "mmap of test memory failed");
  auto* begin = static_cast<std::byte*>(block);
  check(mprotect(begin + bytes, kPage, PROT_NONE) == 0, "mprotect of a guard page failed");
  return {begin, [bytes](std::byte* memory) { munmap(memory, bytes + kPage); }};
}

}  // namespace

GuardedTensor::GuardedTensor(const Shape& shape, Layout layout) {
  const auto item = static_cast<std::size_t>(dtype_bytes(shape.dtype));
  const std::int64_t stride = shape.cols + layout.gap;
  // The guard is longer than a row, so that an extra row is detected too.
  const std::size_t guard = kGuardBytes + static_cast<std::size_t>(stride) * item;
  if (layout.at_guard_page) {
    const std::size_t body = static_cast<std::size_t>((shape.rows - 1) * stride + shape.cols) * item;
    bytes_ = (guard + body + kPage - 1) / kPage * kPage;
    memory_ = memory_before_guard_page(bytes_);
    std::fill_n(memory_.get(), bytes_, kSentinel);
    tensor_ = {memory_.get() + (bytes_ - body), shape.rows, shape.cols, stride, shape.dtype, Device::cpu};
    return;
  }
  const auto body = static_cast<std::size_t>(shape.rows * stride + layout.shift) * item;
  constexpr std::size_t kAlign = 64;
  bytes_ = 2 * (guard + kAlign) + body;
  memory_ = std::make_unique<std::byte[]>(bytes_);
  std::fill_n(memory_.get(), bytes_, kSentinel);
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.get()) + guard;
  const std::uintptr_t aligned = (address + kAlign - 1) / kAlign * kAlign;
  std::byte* begin = memory_.get() + (aligned - reinterpret_cast<std::uintptr_t>(memory_.get()));
  tensor_ = {begin + static_cast<std::size_t>(layout.shift) * item,
             shape.rows,
             shape.cols,
             stride,
             shape.dtype,
             Device::cpu};
}

template <class Visit>
void GuardedTensor::visit(Visit visit_number) const {
  const auto all = [&]<class T>(T) {
    std::size_t i = 0;
    for (std::int64_t r = 0; r < tensor_.rows; ++r)
      for (std::int64_t c = 0; c < tensor_.cols; ++c) visit_number(i++, tensor_.row<T>(r)[c]);
  };
  switch (tensor_.dtype) {
    case DType::f32:
      return all(float{});
    case DType::bf16:
      return all(bf16{});
    case DType::f16:
      return all(f16{});
    case DType::f64:
      return all(double{});
    case DType::c128:
      return all(std::complex<double>{});
    case DType::i32:
      return all(std::int32_t{});
    case DType::i8:
      return all(std::int8_t{});
    default:
      FAIL() << "the harness does not support " << dtype_name(tensor_.dtype);
  }
}

void GuardedTensor::write(const std::vector<double>& numbers) {
  ASSERT_EQ(numbers.size(), static_cast<std::size_t>(tensor_.count()));
  visit([&]<class T>(std::size_t i, T& number) {
    if constexpr (std::is_same_v<T, bf16>)
      number = to_bf16(static_cast<float>(numbers[i]));
    else if constexpr (std::is_same_v<T, f16>)
      number = to_f16(static_cast<float>(numbers[i]));
    else
      number = static_cast<T>(numbers[i]);
  });
}

std::vector<double> GuardedTensor::read() const {
  std::vector<double> numbers(static_cast<std::size_t>(tensor_.count()));
  visit([&]<class T>(std::size_t i, T number) {
    if constexpr (std::is_same_v<T, std::complex<double>>)
      numbers[i] = number.real();
    else if constexpr (kHalf<T>)
      numbers[i] = static_cast<double>(to_f32(number));
    else
      numbers[i] = static_cast<double>(number);
  });
  return numbers;
}

std::vector<double> GuardedTensor::read_imaginary() const {
  std::vector<double> numbers(static_cast<std::size_t>(tensor_.count()));
  visit([&]<class T>(std::size_t i, T number) {
    if constexpr (std::is_same_v<T, std::complex<double>>) numbers[i] = number.imag();
  });
  return numbers;
}

void GuardedTensor::poison() {
  const auto item = static_cast<std::size_t>(dtype_bytes(tensor_.dtype));
  for (std::int64_t r = 0; r < tensor_.rows; ++r)
    std::fill_n(static_cast<std::byte*>(tensor_.data) + static_cast<std::size_t>(r * tensor_.stride) * item,
                static_cast<std::size_t>(tensor_.cols) * item, kSentinel);
}

bool GuardedTensor::guards_intact() const {
  const std::int64_t item = dtype_bytes(tensor_.dtype);
  const std::byte* guard = memory_.get();
  const auto intact_up_to = [&](const std::byte* end) {
    return std::all_of(guard, end, [](std::byte byte) { return byte == kSentinel; });
  };
  for (std::int64_t r = 0; r < tensor_.rows; ++r) {
    const std::byte* row = tensor_.begin_bytes() + r * tensor_.stride * item;
    if (!intact_up_to(row)) return false;
    guard = row + tensor_.cols * item;
  }
  return intact_up_to(memory_.get() + bytes_);
}

std::vector<double> earlier_contents(const Values& input, std::size_t place) {
  Rng rng(77, 0, place);
  std::vector<double> numbers(input.numbers.size());
  for (double& number : numbers) number = to_f32(to_bf16(rng.normal()));  // exact in every dtype
  return numbers;
}

BoundOp::BoundOp(const OpDefinition& def, const OpCase& op_case, const Conditions& conditions)
    : def_(def), case_(op_case), conditions_(conditions), attributes_(op_case.attributes) {
  int place = 0;
  const auto tensor = [&](bool there, const Shape& shape) {
    const Layout layout =
        conditions.laid_out < 0 || conditions.laid_out == place ? conditions.layout : Layout{};
    ++place;
    return there ? GuardedTensor(shape, layout) : GuardedTensor();
  };
  const OpFacts& facts = op_facts(&def);
  std::vector<Shape> shapes;
  for (std::size_t i = 0; i < case_.in.size(); ++i) {
    const Values& values = case_.in[i];
    const bool stored = conditions.storing != Storing::as_rows && std::cmp_equal(i, facts.matrix);
    const DType dtype =
        stored ? dtype_of_storing(conditions.storing) : full_if(has_bit(facts.full, i), conditions.dtype);
    in.push_back(tensor(static_cast<bool>(values), shape_in(values, dtype)));
    shapes.push_back(in.back().tensor().shape());
    if (values && !(stored && dtype == DType::i8)) in.back().write(values.numbers);
  }
  if (conditions.storing != Storing::as_rows) store_matrix(shapes);
  for (const Shape& shape : def.shapes(shapes, attributes_)) out.push_back(tensor(true, shape));
  for (std::size_t i = 0; i < case_.d_out.size(); ++i) {
    const Values& values = case_.d_out[i];
    const DType dtype = full_if(has_bit(conditions.wide_d_out, i), out[i].tensor().dtype);
    d_out.push_back(tensor(static_cast<bool>(values), shape_in(values, dtype)));
    if (values) d_out.back().write(values.numbers);
  }
  for (std::size_t i = 0; i < case_.in.size(); ++i) {
    const bool requested = case_.in[i] && std::cmp_not_equal(i, case_.frozen) &&
                           has_bit(inputs_that_are(def, is::differentiable) & conditions.requested, i);
    Shape shape = in[i].tensor().shape();
    shape.dtype =
        full_if(has_bit(inputs_that_are(def, is::parameter) | conditions.wide_d_in, i), shape.dtype);
    d_in.push_back(tensor(requested, shape));
    if (requested && has_bit(inputs_that_are(def, is::parameter) | conditions.add, i))
      d_in[i].write(conditions.earlier_contents ? earlier_contents(case_.in[i], i)
                                                : std::vector<double>(case_.in[i].numbers.size()));
  }
  const std::int64_t bytes = conditions.backend.scratch_bytes(def, shapes, attributes_);
  if (bytes == 0) return;
  // With a guard page, whole cache lines keep the start aligned, as in planned memory.
  const bool guard_page = conditions.layout.at_guard_page;
  scratch =
      GuardedTensor({1, guard_page ? align_up(bytes) : bytes, DType::u8}, {.at_guard_page = guard_page});
}

// Appends the scales after the case's own inputs, and writes the matrix as integers.
void BoundOp::store_matrix(std::vector<Shape>& shapes) {
  const OpFacts& facts = op_facts(&def_);
  if (&def_ == &op::kEmbedding) attributes_ = EmbeddingAttributes{true, conditions_.dtype};
  if (dtype_of_storing(conditions_.storing) != DType::i8) return;
  const auto place = static_cast<std::size_t>(facts.matrix), scales = static_cast<std::size_t>(facts.scales);
  const Values& matrix = case_.in[place];
  const std::int64_t rows = matrix.shape.rows, cols = matrix.shape.cols;
  const std::int64_t groups = conditions_.storing == Storing::i8_rows ? 1 : scales_per_row(cols);
  std::vector<double> integers, factors;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c)
      integers.push_back(matrix.numbers[static_cast<std::size_t>(r * cols + c)] /
                         scale_of(conditions_.storing, r, c));
    for (std::int64_t g = 0; g < groups; ++g)
      factors.push_back(scale_of(conditions_.storing, r, g * kScaledColumns));
  }
  in[place].write(integers);
  in.resize(scales), shapes.resize(scales);
  in.push_back(GuardedTensor({rows, groups, DType::f32}, conditions_.layout));
  in.back().write(factors);
  shapes.push_back(in.back().tensor().shape());
}

OpCall BoundOp::call(bool backward) {
  in_ = tensors_of(in), out_ = tensors_of(out), d_out_ = tensors_of(d_out), d_in_ = tensors_of(d_in);
  OpCall call{.in = in_,
              .out = out_,
              .d_out = {},
              .d_in = {},
              .attributes = attributes_,
              .scratch = scratch.tensor()};
  if (backward) {
    call.d_out = d_out_;
    call.d_in = d_in_;
    call.add = conditions_.add;
  }
  validate_call(def_, conditions_.backend, call);
  return call;
}

void BoundOp::run(const Context& context, bool backward) {
  const Kernels& kernels = *conditions_.backend.find(def_);
  OpCall op = call(backward);
  DeviceCopy copy(context.runtime());
  if (context.device() != Device::cpu) {
    for (auto [tensors, device_tensor] :
         {std::pair{&in, &in_}, std::pair{&out, &out_}, std::pair{&d_out, &d_out_}, std::pair{&d_in, &d_in_}})
      for (std::size_t i = 0; i < tensors->size(); ++i) copy.add((*tensors)[i], (*device_tensor)[i]);
    copy.add(scratch, op.scratch);
    copy.send();
  }
  (backward ? kernels.backward : kernels.forward)(context, op);
  copy.fetch();
}

void BoundOp::forward(const Context& context) {
  run(context, false);
}

void BoundOp::backward(const Context& context) {
  if (def_.loss)
    std::ranges::for_each(
        out, [](GuardedTensor& one) { one.poison(); });  // backward of a loss computes its outputs
  if (conditions_.poison_unsaved) poison_unsaved();
  run(context, true);
}

void BoundOp::poison_unsaved() {
  for (std::size_t i = 0; i < in.size(); ++i)
    if (in[i] && !def_.input_is(i, is::saved)) in[i].poison();
  for (std::size_t i = 0; i < out.size(); ++i)
    if (!def_.saves_output(i)) out[i].poison();
}

bool has_kernels(const OpDefinition& def, const Backend& backend, DType dtype) {
  const Kernels* kernels = backend.find(def);
  return kernels && kernels->forward && (kernels->backward || !def.reference->backward) &&
         (kernels->rows & dtypes({dtype})) != 0;
}

std::vector<Conditions> cpu_precisions(const OpDefinition& def) {
  std::vector<Conditions> precisions;
  for (const Conditions& cpu : {kCpu, kCpuBf16})
    if (has_kernels(def, cpu_backend(), cpu.dtype)) precisions.push_back(cpu);
  return precisions;
}

std::vector<Conditions> stored_precisions(const OpDefinition& def) {
  std::vector<Conditions> precisions;
  if (op_facts(&def).matrix < 0) return precisions;
  for (Conditions cpu : cpu_precisions(def))
    for (const Storing storing : {Storing::bf16, Storing::f16, Storing::i8_rows, Storing::i8_blocks}) {
      if (dtype_of_storing(storing) == cpu.dtype) continue;
      cpu.storing = storing;
      precisions.push_back(cpu);
    }
  return precisions;
}

bool has_backward(const OpDefinition& def, const OpCase& op_case) {
  std::uint32_t graded = inputs_that_are(def, is::differentiable);
  if (op_case.frozen >= 0) graded &= ~(1u << op_case.frozen);
  return def.reference->backward && !op_case.inference && graded != 0;
}

std::string gradient_name(std::size_t input) {
  return fmt::format("gradient of input {}", input);
}

Results gradients(Results results) {
  std::erase_if(results, [](const Result& result) { return !result.name.starts_with("gradient"); });
  return results;
}

Results written(const OpDefinition& def, const BoundOp& op) {
  Results results;
  for (std::size_t i = 0; i < op.out.size(); ++i)
    results.push_back({fmt::format("output {}", i), op.out[i].read()});
  for (std::size_t i = 0; i < op.in.size(); ++i)
    if (has_bit(op_facts(&def).state, i)) results.push_back({fmt::format("state {}", i), op.in[i].read()});
  for (std::size_t i = 0; i < op.d_in.size(); ++i)
    if (op.d_in[i]) results.push_back({gradient_name(i), op.d_in[i].read()});
  return results;
}

Results run_op(const OpDefinition& def, const OpCase& op_case, const Conditions& conditions,
               const Context& context) {
  BoundOp op(def, op_case, conditions);
  op.forward(context);
  if (has_backward(def, op_case))
    op.backward(context);
  else
    op.d_in.clear();
  return written(def, op);
}

Results run_op(const OpDefinition& def, const OpCase& op_case, const Conditions& conditions) {
  // One context for all calls, as in a program: state kept from one call must not affect another.
  static const Context context;
  return run_op(def, op_case, conditions, context);
}

double error_of(const std::vector<double>& expected, const std::vector<double>& found, double min_scale) {
  if (!all_finite(expected) || !all_finite(found)) return std::numeric_limits<double>::infinity();
  std::vector<double> difference(expected.size());
  double largest_difference = 0, largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference[i] = found[i] - expected[i];
    largest_difference = std::max(largest_difference, std::abs(difference[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  if (largest_difference == 0) return 0;
  if (expected.size() < kSmallTensor) return length(difference) / std::max(length(expected), min_scale);
  return largest_difference / std::max(largest, min_scale);
}

double one_minus_cosine(const std::vector<double>& expected, const std::vector<double>& found) {
  // |a/|a| - b/|b||^2 / 2 is exact for small angles, where 1 - dot would round to steps of 1e-16.
  const double a = length(expected), b = length(found);
  if (a == 0 || b == 0) return a == b ? 0 : 1;
  double squares = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = expected[i] / a - found[i] / b;
    squares += difference * difference;
  }
  return squares / 2;
}

void expect_same_bits(const Results& expected, const Results& found) {
  ASSERT_EQ(expected.size(), found.size());
  for (std::size_t r = 0; r < expected.size(); ++r) {
    ASSERT_EQ(expected[r].name, found[r].name);
    ASSERT_EQ(expected[r].numbers.size(), found[r].numbers.size()) << expected[r].name;
    for (std::size_t i = 0; i < expected[r].numbers.size(); ++i) {
      const double a = expected[r].numbers[i], b = found[r].numbers[i];
      ASSERT_EQ(std::bit_cast<std::uint64_t>(a), std::bit_cast<std::uint64_t>(b))
          << expected[r].name << ", element " << i << ": " << fmt::format("{} and {}", a, b);
    }
  }
}

void expect_close(const OpDefinition& def, const OpCase& op_case, DType dtype, const Results& expected,
                  const Results& found) {
  const Tolerance tolerance = tolerance_of(&def, dtype);
  ASSERT_EQ(expected.size(), found.size());
  for (std::size_t r = 0; r < expected.size(); ++r) {
    const std::vector<double>&a = expected[r].numbers, &b = found[r].numbers;
    ASSERT_EQ(expected[r].name, found[r].name);
    ASSERT_EQ(a.size(), b.size()) << expected[r].name;
    const double allowed = expected[r].name.starts_with("gradient") ? tolerance.gradient : tolerance.forward;
    EXPECT_LE(error_of(a, b, op_case.min_scale), allowed)
        << expected[r].name << " (" << tolerance.reason << ")";
    if (a.size() >= kSmallTensor && length(a) > op_case.min_scale) {
      EXPECT_LE(one_minus_cosine(a, b), allowed * allowed + kCosineRounding) << expected[r].name;
    }
  }
}

void expect_guards_intact(const BoundOp& op) {
  const auto look = [](const std::vector<GuardedTensor>& tensors, const char* name) {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      EXPECT_TRUE(!tensors[i] || tensors[i].guards_intact())
          << "memory around " << name << " " << i << " was written";
  };
  look(op.in, "input"), look(op.out, "output"), look(op.d_out, "gradient of output"),
      look(op.d_in, "gradient of input");
  EXPECT_TRUE(!op.scratch || op.scratch.guards_intact()) << "memory around the scratch was written";
}

Threads::Threads(int count) : before_(max_threads()) {
  set_threads(count);
}

Threads::~Threads() {
  set_threads(before_);
}

namespace {

TEST(OpHarness, GuardsDetectWritesBeforeBetweenAndAfterRows) {
  for (const Layout layout : {Layout{}, Layout{3, 0}, Layout{0, 1}, Layout{3, 1}}) {
    GuardedTensor tensor({2, 5, DType::f32}, layout);
    EXPECT_TRUE(std::ranges::all_of(tensor.read(), [](double number) { return std::isnan(number); }));
    tensor.write({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
    EXPECT_TRUE(tensor.guards_intact());
    EXPECT_EQ(tensor.read(), (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.tensor().data) % 64,
              static_cast<std::size_t>(layout.shift) * 4);
    for (float* stray : {tensor.tensor().row<float>(0) - 1, tensor.tensor().row<float>(1) + 5,
                         layout.gap ? tensor.tensor().row<float>(0) + 5 : nullptr}) {
      if (!stray) continue;
      const float before = *stray;
      *stray = 0;
      EXPECT_FALSE(tensor.guards_intact());
      std::memcpy(stray, &before, sizeof before);
    }
  }
}

TEST(OpHarness, ErrorDetectsOneWrongElementAndASmallRotation) {
  std::vector<double> expected(100, 1.0), found = expected;
  expected[0] = found[0] = 1000;
  EXPECT_EQ(error_of(expected, found, 0), 0);
  found[7] = 2;
  EXPECT_DOUBLE_EQ(error_of(expected, found, 0), 1e-3);
  const std::vector<double> few = {1, 0, 0}, wrong = {1, 1e-3, 0};
  EXPECT_DOUBLE_EQ(error_of(few, wrong, 0), 1e-3);
  EXPECT_NEAR(one_minus_cosine(few, wrong), 0.5e-6, 1e-9);
  found[7] = std::nan("");
  EXPECT_EQ(error_of(expected, found, 0), std::numeric_limits<double>::infinity());
}

}  // namespace

}  // namespace thimble
