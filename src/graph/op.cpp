#include "graph/op.h"

#include <algorithm>

#include "base/error.h"

namespace thimble {

namespace {

// Dtypes of stored weights, which may differ from the dtype of the rows (ops/linear.h).
constexpr DTypes kStored = dtypes({DType::bf16, DType::f16, DType::i8, DType::blocks});

class CallCheck {
 public:
  CallCheck(const OpDefinition& op, const Backend& backend, const OpCall& call)
      : op_(op), backend_(backend), call_(call) {
    if (const Kernels* found = backend.find(op)) kernels_ = *found;
  }

  void run() const {
    check_counts();
    check_layout("input", call_.in);
    check_layout("output", call_.out);
    check_layout("gradient of output", call_.d_out);
    check_layout("gradient of input", call_.d_in);
    check_outputs();
    check_kernels();
    check_gradients();
  }

 private:
  bool backward() const { return !call_.d_in.empty() || !call_.d_out.empty(); }

  void check_counts() const {
    check(call_.d_in.size() <= call_.in.size(), "[{}] got {} gradients for {} inputs", op_.name,
          call_.d_in.size(), call_.in.size());
    check(call_.d_out.size() <= call_.out.size(), "[{}] got {} gradients for {} outputs", op_.name,
          call_.d_out.size(), call_.out.size());
  }

  // In backward, a tensor that is not saved may have a shape and no memory.
  void check_layout(std::string_view what, std::span<const Tensor> tensors) const {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& tensor = tensors[i];
      check(tensor || tensor.rows == 0 || backward(), "[{}] {} {} has the shape {} but no memory", op_.name,
            what, i, tensor.shape().text());
      if (!tensor) continue;
      check(tensor.stride >= tensor.cols, "[{}] {} {} has a row stride of {}, less than its {} columns",
            op_.name, what, i, tensor.stride, tensor.cols);
      check(tensor.device == call_.in[0].device, "[{}] {} {} is on another device than input 0", op_.name,
            what, i);
    }
  }

  void check_outputs() const {
    std::vector<Shape> in;
    for (const Tensor& tensor : call_.in) in.push_back(tensor.shape());
    const std::vector<Shape> expected = op_.shapes(in, call_.attributes);
    check(call_.out.size() == expected.size(), "[{}] expected {} outputs, got {}", op_.name, expected.size(),
          call_.out.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      check(call_.out[i].shape() == expected[i], "[{}] expected output {} to be {}, got {}", op_.name, i,
            expected[i].text(), call_.out[i].shape().text());
      for (std::size_t j = 0; j < call_.in.size(); ++j)
        check(!overlap(call_.out[i], call_.in[j]), "[{}] output {} overlaps input {}", op_.name, i, j);
      for (std::size_t j = 0; j < i; ++j)
        check(!overlap(call_.out[i], call_.out[j]), "[{}] outputs {} and {} overlap", op_.name, j, i);
    }
  }

  void check_kernels() const {
    const bool gradients =
        std::ranges::any_of(call_.d_in, [](const Tensor& d) { return static_cast<bool>(d); });
    check(kernels_.forward && (!gradients || kernels_.backward), "[{}] has no {} kernel for {}", op_.name,
          backend_.name, gradients ? "backward" : "forward");
    const DType rows = call_.in[0].dtype;
    check((kernels_.rows & dtypes({rows})) != 0, "[{}] has no {} kernel for {}", op_.name, backend_.name,
          dtype_name(rows));
    for (std::size_t i = 1; i < call_.in.size(); ++i) {
      const DType dtype = call_.in[i].dtype;
      if (dtype == rows || (dtypes({dtype}) & kStored) == 0) continue;
      check((kernels_.stored & dtypes({dtype})) != 0, "[{}] has no {} kernel for input {} stored as {}",
            op_.name, backend_.name, i, dtype_name(dtype));
      check(i >= call_.d_in.size() || !call_.d_in[i], "[{}] has no gradient of input {} stored as {}",
            op_.name, i, dtype_name(dtype));
    }
  }

  void check_gradients() const {
    for (std::size_t i = 0; i < call_.d_out.size(); ++i)
      check_fits("output", i, call_.d_out[i], call_.out[i], false);
    for (std::size_t i = 0; i < call_.d_in.size(); ++i) {
      if (!call_.d_in[i]) continue;
      check(op_.input_is(i, is::differentiable), "[{}] input {} has no gradient", op_.name, i);
      check_fits("input", i, call_.d_in[i], call_.in[i], op_.input_is(i, is::parameter));
      check_gradient_memory(i);
    }
  }

  void check_fits(std::string_view what, std::size_t i, const Tensor& gradient, const Tensor& value,
                  bool parameter) const {
    if (!gradient) return;
    const bool same_size = gradient.rows == value.rows && gradient.cols == value.cols;
    const DType full = statistic_dtype(value.dtype);
    const bool full_fits = parameter || kernels_.wide_gradients;
    const bool fits = (gradient.dtype == full && full_fits) || (gradient.dtype == value.dtype && !parameter);
    check(same_size && fits, "[{}] gradient of {} {} is {}, which does not fit the {}, {}", op_.name, what, i,
          gradient.shape().text(), what, value.shape().text());
  }

  // Whether the gradient of input i is the gradient of output 0, in the same memory.
  bool passed_on(std::size_t i) const {
    const Tensor &from = call_.d_out[0], &to = call_.d_in[i];
    return op_.input_is(i, is::passes_gradient) && !call_.adds(i) && to.data == from.data &&
           to.stride == from.stride && to.shape() == from.shape();
  }

  // Gradients of two inputs may share memory only if the inputs are the same value, as in x + x,
  // and the second gradient is added to the first.
  void check_gradient_memory(std::size_t i) const {
    const Tensor& gradient = call_.d_in[i];
    for (std::size_t j = 0; j < call_.in.size(); ++j)
      check(!overlap(gradient, call_.in[j]), "[{}] gradient of input {} overlaps input {}", op_.name, i, j);
    for (std::size_t j = 0; j < call_.out.size(); ++j)
      check(!overlap(gradient, call_.out[j]), "[{}] gradient of input {} overlaps output {}", op_.name, i, j);
    for (std::size_t j = 0; j < call_.d_out.size(); ++j)
      check(passed_on(i) || !overlap(gradient, call_.d_out[j]),
            "[{}] gradients of input {} and output {} overlap", op_.name, i, j);
    for (std::size_t j = 0; j < i; ++j) {
      const bool same_input =
          call_.in[i].data == call_.in[j].data && call_.in[i].shape() == call_.in[j].shape();
      const bool one = gradient.data == call_.d_in[j].data && same_input && call_.adds(i);
      check(one || !overlap(gradient, call_.d_in[j]), "[{}] gradients of inputs {} and {} overlap", op_.name,
            j, i);
    }
  }

  const OpDefinition& op_;
  const Backend& backend_;
  Kernels kernels_;  // empty if the backend does not support the op
  const OpCall& call_;
};

double bytes_of(std::span<const Tensor> tensors) {
  double bytes = 0;
  for (const Tensor& tensor : tensors)
    if (tensor) bytes += static_cast<double>(tensor.shape().bytes());
  return bytes;
}

}  // namespace

FusedKernel Backend::fused(std::span<const OpDefinition* const> ops, bool backward) const {
  for (const FusedRun* run : fused_runs) {
    const auto names = std::ranges::count_if(run->ops, [](std::string_view name) { return !name.empty(); });
    const auto same = [](const OpDefinition* op, std::string_view name) { return op->name == name; };
    if (run->backward == backward &&
        std::ranges::equal(ops, std::span(run->ops).first(static_cast<std::size_t>(names)), same))
      return run->kernel;
  }
  return nullptr;
}

std::int64_t Backend::scratch_bytes(const OpDefinition& op, std::span<const Shape> in,
                                    const Attributes& attributes) const {
  const Kernels* kernels = find(op);
  return kernels && kernels->scratch_bytes ? kernels->scratch_bytes(in, attributes) : 0;
}

void validate_call(const OpDefinition& op, const Backend& backend, const OpCall& call) {
  CallCheck(op, backend, call).run();
}

Work work_of(const OpDefinition& op, const OpCall& call) {
  double bytes = bytes_of(call.in) + bytes_of(call.out) + bytes_of(call.d_out) + bytes_of(call.d_in);
  for (std::size_t i = 0; i < call.d_in.size(); ++i)
    if (call.d_in[i] && call.adds(i)) bytes += static_cast<double>(call.d_in[i].shape().bytes());
  return {op.flops ? op.flops(call) : 0, bytes};
}

}  // namespace thimble
