// GPTQ (Frantar et al. 2022): rounds the columns of a matrix one after another, and adjusts the
// columns not yet rounded to compensate for the error. It minimizes |X W^T - X Q^T| on sampled
// inputs X rather than |W - Q|.
//
//   H       X^T X averaged over rows (InputMoments below); diagonal elements of 0 become 1; then
//           0.01 times the mean of the diagonal is added to the diagonal
//   order   columns by descending diagonal of H: columns with the largest inputs are rounded first
//   U       upper triangular, U^T U = H^-1 (both in that order)
//   rows    for column j:  q = round(w[j] / s) in [-h, h],  e = (w[j] - q s) / U[j,j],
//           w[k] -= e U[j,k] for k > j
//           in blocks of 128 columns: columns after a block are updated once per block
//
// All computation is in f64; it takes seconds. Rows are independent, so the result does not depend
// on the number of threads.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/progress.h"
#include "base/signals.h"
#include "model/params.h"
#include "tensor/tensor.h"

namespace thimble {

namespace cpu {
class Gemm;
}  // namespace cpu

// Finds the item whose `weight` covers the tensor, in a map keyed by offset; nullptr if none does.
template <class Item>
const Item* covering(const std::map<std::int64_t, Item>& by_offset, const Param& param) {
  const auto after = by_offset.upper_bound(param.offset);
  if (after == by_offset.begin()) return nullptr;
  const Item& item = std::prev(after)->second;
  const bool inside = param.offset + param.count() <= item.weight.offset + item.weight.count();
  return inside && param.cols == item.weight.cols ? &item : nullptr;
}

// Collects the inputs of a model's matrices as H = X^T X, averaged over rows.
//
//   InputMoments moments;
//   model.observe_products(rows, [&](const ParamView& weight, const Tensor& x) {
//     moments.add(weight, x);
//   });
//
// Matrices computed as one product share one H: q, k and v of a layer, gate and up. A tied
// embedding uses the H of the head, whose inputs are the rows after the final norm. Products are
// f32 within a call of add(), sums over calls are f64: the same calls give the same bits for a
// given number of threads.
class InputMoments {
 public:
  InputMoments();
  ~InputMoments();
  InputMoments(InputMoments&&) noexcept;

  // x [N, C] in host memory, f32, bf16 or f16; weight [O, C]. Throws an Error for non-finite
  // values.
  void add(const ParamView& weight, const Tensor& x);

  struct Moment {
    ParamView weight;  // may cover several tensors
    std::int64_t rows = 0;
    std::vector<double> sums;  // [C, C], not yet divided by rows

    std::int64_t width() const { return weight.cols; }
  };
  // nullptr if the tensor was not part of any product, for example an embedding table.
  const Moment* of(const Param& param) const { return covering(moments_, param); }

  std::int64_t rows() const;  // maximum over the moments
  std::map<std::int64_t, Moment>& all() { return moments_; }
  const std::map<std::int64_t, Moment>& all() const { return moments_; }

 private:
  std::map<std::int64_t, Moment> moments_;  // by the weight's offset
  std::vector<float> input_, product_;
  std::unique_ptr<cpu::Gemm> gemm_;
};

struct GptqFactor {
  ParamView weight;
  std::vector<std::int32_t> order;  // position in U -> column
  std::vector<double> upper;        // [C, C]: U

  std::int64_t width() const { return weight.cols; }
};

inline constexpr double kGptqDamping = 0.01;
GptqFactor gptq_factor(const InputMoments::Moment& moment, double damping = kGptqDamping,
                       const Interrupt* interrupt = nullptr);

// One factor per product.
class GptqFactors {
 public:
  GptqFactors() = default;
  explicit GptqFactors(InputMoments moments, const ProgressOutput& progress = ProgressOutput::nowhere(),
                       const Interrupt* interrupt = nullptr);  // computed in parallel

  // Returns nullptr if there is none.
  const GptqFactor* of(const Param& param) const { return covering(factors_, param); }
  std::int64_t rows() const { return rows_; }  // number of rows that H was averaged over

 private:
  std::map<std::int64_t, GptqFactor> factors_;  // by the weight's offset
  std::int64_t rows_ = 0;
};

// Computes the codes of values [R, C], in [-highest, highest], given one scale per row (0: all
// codes are 0). Where `pruned` is not 0, codes are 0 and the other codes compensate for that. An
// empty `pruned` means no pruning.
void gptq_rows(const GptqFactor& factor, std::span<const float> values, std::span<const float> scales,
               int highest, std::span<const std::uint8_t> pruned, std::span<std::int8_t> q);

}  // namespace thimble
