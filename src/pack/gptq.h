// GPTQ: columns are rounded one after another, and those that are still to come make up for the error (Frantar et al.
// 2022; parameter-golf 2.12). What is kept small is not |W - Q| but |X W^T - X Q^T|, on inputs X that were seen.
//
//   H       X^T X averaged over rows (InputMoments below); a diagonal element of 0 becomes 1; then 0.01 of the mean of the
//           diagonal is added to all of it
//   order   columns by descending diagonal of H: what is multiplied with most is rounded first
//   U       upper triangular, U^T U = H^-1 (both in that order)
//   rows    for column j:  q = round(w[j] / s) in [-h, h],  e = (w[j] - q s) / U[j,j],  w[k] -= e U[j,k] for k > j
//           in blocks of 128 columns: what lies behind a block is touched once for the whole of it
//
// All of it is f64: the solve costs seconds, and its codes are those of the formula. Rows do not depend on each other,
// so neither on the number of threads.
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

// What the matrices of a model are multiplied with, as GPTQ wants to know it: H = X^T X, averaged over rows.
//
//   InputMoments moments;
//   model.watch_products(rows, [&](const ParamView& weight, const Tensor& x) { moments.add(weight, x); });
//
// Matrices that are one product share one H: q, k and v of a layer, gate and up. A tied embedding's is that of the
// head, the rows behind the final norm. Products are f32 for each call of add(), sums over calls f64: the same rows in
// the same calls give the same bits for the same number of threads.
namespace cpu {
class Gemm;
}  // namespace cpu

// Of things with a `weight` by its offset the one that covers a tensor; nullptr: none does.
template <class Thing>
const Thing* covering(const std::map<std::int64_t, Thing>& by_offset, const Param& param) {
  const auto after = by_offset.upper_bound(param.offset);
  if (after == by_offset.begin()) return nullptr;
  const Thing& thing = std::prev(after)->second;
  const bool inside = param.offset + param.count() <= thing.weight.offset + thing.weight.count();
  return inside && param.cols == thing.weight.cols ? &thing : nullptr;
}

class InputMoments {
 public:
  InputMoments();
  ~InputMoments();
  InputMoments(InputMoments&&) noexcept;

  // x [N, C] in host memory, f32 or bf16; weight [O, C]. Values that are not finite are an Error.
  void add(const ParamView& weight, const Tensor& x);

  struct Moment {
    ParamView weight;  // may cover several tensors
    std::int64_t rows = 0;
    std::vector<double> sums;  // [C, C], not yet divided by rows

    std::int64_t width() const { return weight.cols; }
  };
  // nullptr: nothing was multiplied with it, as with tables that are only looked up.
  const Moment* of(const Param& param) const { return covering(moments_, param); }

  std::int64_t rows() const;  // of the one with the most
  std::map<std::int64_t, Moment>& all() { return moments_; }
  const std::map<std::int64_t, Moment>& all() const { return moments_; }

 private:
  std::map<std::int64_t, Moment> moments_;  // by the weight's offset
  std::vector<float> input_, product_;
  std::unique_ptr<cpu::Gemm> gemm_;
};

struct GptqFactor {
  ParamView weight;
  std::vector<std::int32_t> order;  // place -> column
  std::vector<double> upper;        // [C, C]: U

  std::int64_t width() const { return weight.cols; }
};

inline constexpr double kGptqDamping = 0.01;
GptqFactor gptq_factor(const InputMoments::Moment& moment, double damping = kGptqDamping,
                       const Interrupt* interrupt = nullptr);

// A factor for each product that was seen.
class GptqFactors {
 public:
  GptqFactors() = default;
  explicit GptqFactors(InputMoments moments, const ProgressOutput& progress = ProgressOutput::nowhere(),
                       const Interrupt* interrupt = nullptr);  // in parallel

  const GptqFactor* of(const Param& param) const {
    return covering(factors_, param);
  }                                            // nullptr: it was not seen
  std::int64_t rows() const { return rows_; }  // that H was made from

 private:
  std::map<std::int64_t, GptqFactor> factors_;  // by the weight's offset
  std::int64_t rows_ = 0;
};

// Codes of values [R, C] with a scale for each row (0: all codes are 0), in [-highest, highest]. Where `pruned` is not 0
// the code is 0, and the others make up for that, too; empty: nowhere.
void gptq_rows(const GptqFactor& factor, std::span<const float> values, std::span<const float> scales,
               int highest, std::span<const std::uint8_t> pruned, std::span<std::int8_t> q);

}  // namespace thimble
