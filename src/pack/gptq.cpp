#include "pack/gptq.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "base/error.h"
#include "base/parallel.h"
#include "ops/cpu/gemm.h"
#include "tensor/tensor.h"

namespace thimble {

namespace {

constexpr std::int64_t kRowsPerProduct = 4096;  // rows per f32 product

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
        "[calibrate] expected floats in host memory with {} columns, found {}", weight.cols,
        x.shape().text());
  const std::int64_t C = x.cols;
  Moment& moment = moments_[weight.offset];
  moment.weight = weight;
  moment.sums.resize(index_of(C * C));
  product_.resize(index_of(C * C));
  for (std::int64_t begin = 0; begin < x.rows; begin += kRowsPerProduct) {
    const std::int64_t rows = std::min(kRowsPerProduct, x.rows - begin);
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
  check(std::isfinite(trace), Hint{"use another checkpoint: this one is damaged, or its training diverged"},
        "the model computes non-finite values on the calibration text");
}

std::int64_t InputMoments::rows() const {
  std::int64_t max_rows = 0;
  for (const auto& [offset, moment] : moments_) max_rows = std::max(max_rows, moment.rows);
  return max_rows;
}

namespace {

constexpr std::size_t kBlock = 128;       // columns
constexpr std::size_t kRowsPerBlock = 8;  // rows that share each row of U while it is in the cache

double dot(const double* a, const double* b, std::size_t count) {
  constexpr std::size_t kLanes = 8;  // a fixed order of summation that compilers can vectorize
  double sums[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  for (; i < count; ++i) sums[0] += a[i] * b[i];
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

void subtract_scaled(double factor, const double* from, std::size_t count, double* to) {
  for (std::size_t k = 0; k < count; ++k) to[k] -= factor * from[k];
}

// H with dead columns replaced and damping added.
std::vector<double> damped(const InputMoments::Moment& moment, double damping) {
  const auto C = static_cast<std::size_t>(moment.width());
  std::vector<double> h(moment.sums);
  double trace = 0;
  for (double& value : h) value /= static_cast<double>(moment.rows);
  for (std::size_t c = 0; c < C; ++c) {
    double& own = h[c * C + c];
    if (own == 0) own = 1;
    trace += own;
  }
  for (std::size_t c = 0; c < C; ++c) h[c * C + c] += damping * trace / static_cast<double>(C);
  return h;
}

// Computes L with a = L L^T in place, row by row. Elements above the diagonal are not changed.
void cholesky(std::span<double> a, std::size_t n, const Interrupt* interrupt) {
  for (std::size_t i = 0; i < n; ++i) {
    if (interrupt) interrupt->throw_if_interrupted();
    double* row = a.data() + i * n;
    for (std::size_t j = 0; j < i; ++j) {
      const double* other = a.data() + j * n;
      row[j] = (row[j] - dot(row, other, j)) / other[j];
    }
    const double rest = row[i] - dot(row, row, i);
    check(rest > 0, Hint{"raise --calibration-tokens"},
          "[gptq] too little calibration data: the inputs of a matrix with {} columns are linearly dependent",
          n);
    row[i] = std::sqrt(rest);
  }
}

// Inverse of the lower triangular l, row by row: row i is (e_i - sum over k < i of l[i,k]
// inverse[k]) / l[i,i].
std::vector<double> inverse_of_lower(std::span<const double> l, std::size_t n, const Interrupt* interrupt) {
  std::vector<double> inverse(n * n);
  for (std::size_t i = 0; i < n; ++i) {
    if (interrupt) interrupt->throw_if_interrupted();
    double* row = inverse.data() + i * n;
    for (std::size_t k = 0; k < i; ++k) subtract_scaled(l[i * n + k], inverse.data() + k * n, k + 1, row);
    row[i] = 1;
    for (std::size_t k = 0; k <= i; ++k) row[k] /= l[i * n + i];
  }
  return inverse;
}

// Some rows of a matrix, with columns in the factor's order.
class RowBlock {
 public:
  RowBlock(const GptqFactor& factor, std::span<const float> scales, int highest)
      : factor_(factor), width_(factor.order.size()), scales_(scales), highest_(highest) {}

  void load(std::span<const float> values, std::span<const std::uint8_t> pruned) {
    w_.resize(values.size());
    zero_.assign(pruned.size(), 0);
    for (std::size_t r = 0; r < scales_.size(); ++r)
      for (std::size_t j = 0; j < width_; ++j) {
        w_[r * width_ + j] = double{values[r * width_ + column(j)]};
        if (!pruned.empty()) zero_[r * width_ + j] = pruned[r * width_ + column(j)];
      }
  }

  void solve(std::span<std::int8_t> q) {
    errors_.resize(scales_.size() * kBlock);
    for (std::size_t begin = 0; begin < width_; begin += kBlock) {
      const std::size_t end = std::min(width_, begin + kBlock);
      for (std::size_t r = 0; r < scales_.size(); ++r)
        round_block(r, begin, end, q.subspan(r * width_, width_));
      for (std::size_t j = begin; j < end; ++j)
        for (std::size_t r = 0; r < scales_.size(); ++r)
          subtract_scaled(errors_[r * kBlock + j - begin], upper(j) + end, width_ - end,
                          &w_[r * width_ + end]);
    }
  }

 private:
  std::size_t column(std::size_t position) const { return static_cast<std::size_t>(factor_.order[position]); }
  const double* upper(std::size_t j) const { return factor_.upper.data() + j * width_; }

  void round_block(std::size_t r, std::size_t begin, std::size_t end, std::span<std::int8_t> q) {
    double* w = &w_[r * width_];
    const double scale = double{scales_[r]}, highest = highest_;
    for (std::size_t j = begin; j < end; ++j) {
      double code = 0;
      if (scale > 0 && (zero_.empty() || !zero_[r * width_ + j]))
        code = std::clamp(std::nearbyint(w[j] / scale), -highest, highest);
      q[column(j)] = static_cast<std::int8_t>(code);
      const double error = (w[j] - code * scale) / upper(j)[j];
      errors_[r * kBlock + j - begin] = error;
      subtract_scaled(error, upper(j) + j + 1, end - j - 1, w + j + 1);
    }
  }

  const GptqFactor& factor_;
  std::size_t width_;
  std::span<const float> scales_;
  double highest_;
  std::vector<double> w_, errors_;
  std::vector<std::uint8_t> zero_;
};

}  // namespace

GptqFactor gptq_factor(const InputMoments::Moment& moment, double damping, const Interrupt* interrupt) {
  const auto C = static_cast<std::size_t>(moment.width());
  check(moment.rows > 0 && moment.sums.size() == C * C, "[gptq] {} sums over {} rows do not match {} columns",
        moment.sums.size(), moment.rows, C);
  const std::vector<double> h = damped(moment, damping);
  GptqFactor out{.weight = moment.weight, .order = std::vector<std::int32_t>(C), .upper = {}};
  std::iota(out.order.begin(), out.order.end(), 0);
  std::ranges::stable_sort(out.order, std::ranges::greater{}, [&](std::int32_t c) {
    const auto at = static_cast<std::size_t>(c);
    return h[at * C + at];
  });
  // In reversed column order, H = R R^T with R upper triangular, so H^-1 = U^T U with U = R^-1.
  // This takes one factorization and one inverse; inverting H and factoring the result would take
  // three.
  std::vector<double> reversed(C * C);
  const auto from = [&](std::size_t i) { return static_cast<std::size_t>(out.order[C - 1 - i]); };
  for (std::size_t i = 0; i < C; ++i)
    for (std::size_t j = 0; j <= i; ++j) reversed[i * C + j] = h[from(i) * C + from(j)];
  cholesky(reversed, C, interrupt);
  out.upper = inverse_of_lower(reversed, C, interrupt);
  std::ranges::reverse(out.upper);  // reversed in both dimensions: lower becomes upper
  return out;
}

GptqFactors::GptqFactors(InputMoments moments, const ProgressOutput& progress, const Interrupt* interrupt)
    : rows_(moments.rows()) {
  std::vector<InputMoments::Moment*> taken;
  std::vector<GptqFactor*> made;
  std::uint64_t numbers = 0;
  for (auto& [offset, moment] : moments.all()) {
    taken.push_back(&moment);
    made.push_back(&factors_[offset]);
    numbers += moment.sums.size();
  }
  ProgressBar bar(progress, "solving", "numbers", numbers);
  std::mutex drawing;
  parallel_tasks(static_cast<std::int64_t>(taken.size()), [&](std::int64_t task) {
    const auto i = static_cast<std::size_t>(task);
    *made[i] = gptq_factor(*taken[i], kGptqDamping, interrupt);
    const std::lock_guard lock(drawing);
    bar.advance(taken[i]->sums.size());
    taken[i]->sums = {};  // free it early: it is as large as the factor
  });
}

void gptq_rows(const GptqFactor& factor, std::span<const float> values, std::span<const float> scales,
               int highest, std::span<const std::uint8_t> pruned, std::span<std::int8_t> q) {
  const std::size_t width = factor.order.size();
  check(values.size() == scales.size() * width && q.size() == values.size() &&
            (pruned.empty() || pruned.size() == values.size()),
        "[gptq] {} values, {} codes and {} pruning marks do not match {} rows of {}", values.size(), q.size(),
        pruned.size(), scales.size(), width);
  parallel_for(
      static_cast<std::int64_t>(scales.size()), kRowsPerBlock, [&](std::int64_t first, std::int64_t last) {
        const auto begin = static_cast<std::size_t>(first), count = static_cast<std::size_t>(last - first);
        RowBlock rows(factor, scales.subspan(begin, count), highest);
        rows.load(values.subspan(begin * width, count * width),
                  pruned.empty() ? pruned : pruned.subspan(begin * width, count * width));
        rows.solve(q.subspan(begin * width, count * width));
      });
}

}  // namespace thimble
