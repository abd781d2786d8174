#include "pack/input_moments.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/half.h"
#include "base/index.h"
#include "base/parallel.h"
#include "ops/cpu/gemm.h"

namespace thimble {

namespace {

constexpr std::int64_t kRowsAtATime = 4096;  // of which sums are f32

void to_floats(const Tensor& x, std::span<float> out) {
  parallel_for(x.rows, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      float* to = out.data() + r * x.cols;
      const auto widen = [&]<class T>(const T* from) {
        std::transform(from, from + x.cols, to, [](T value) { return to_f32(value); });
      };
      if (x.dtype == DType::f32)
        std::copy_n(x.row<float>(r), x.cols, to);
      else if (x.dtype == DType::bf16)
        widen(x.row<bf16>(r));
      else
        widen(x.row<f16>(r));
    }
  });
}

}  // namespace

InputMoments::InputMoments() : gemm_(std::make_unique<cpu::Gemm>()) {}
InputMoments::~InputMoments() = default;
InputMoments::InputMoments(InputMoments&&) noexcept = default;

void InputMoments::add(const ParamView& weight, const Tensor& x) {
  const bool floats = x.dtype == DType::f32 || x.dtype == DType::bf16 || x.dtype == DType::f16;
  check(x.device == Device::cpu && floats && x.cols == weight.cols,
        "[calibrate] a weight of {} columns met {}", weight.cols, x.shape().text());
  const std::int64_t C = x.cols;
  Moment& moment = moments_[weight.offset];
  moment.weight = weight;
  moment.sums.resize(index_of(C * C));
  product_.resize(index_of(C * C));
  for (std::int64_t begin = 0; begin < x.rows; begin += kRowsAtATime) {
    const std::int64_t rows = std::min(kRowsAtATime, x.rows - begin);
    input_.resize(index_of(rows * C));
    to_floats(x.row_range(begin, rows), input_);
    const Tensor input = make_tensor(input_.data(), rows, C);
    gemm_->run(cpu::transposed(input), {input}, make_tensor(product_.data(), C, C), false);
    parallel_for(C, 16, [&](std::int64_t first, std::int64_t last) {
      for (std::size_t i = index_of(first * C); i < index_of(last * C); ++i)
        moment.sums[i] += double{product_[i]};
    });
  }
  moment.rows += x.rows;
  double trace = 0;
  for (std::int64_t c = 0; c < C; ++c) trace += moment.sums[index_of(c * C + c)];
  check(std::isfinite(trace), Hint{"the checkpoint is damaged, or its training diverged"},
        "what the model computes on the calibration text is not finite");
}

std::int64_t InputMoments::rows() const {
  std::int64_t most = 0;
  for (const auto& [offset, moment] : moments_) most = std::max(most, moment.rows);
  return most;
}

}  // namespace thimble
