// What the matrices of a model are multiplied with, as GPTQ wants to know it: H = X^T X, averaged over rows.
//
//   InputMoments moments;
//   model.watch_products(rows, [&](const ParamView& weight, const Tensor& x) { moments.add(weight, x); });
//
// Matrices that are one product share one H: q, k and v of a layer, gate and up. A tied embedding's is that of the
// head, the rows behind the final norm. Products are f32 for each call of add(), sums over calls f64: the same rows in
// the same calls give the same bits for the same number of threads.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "model/params.h"
#include "tensor/tensor.h"

namespace thimble {

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

}  // namespace thimble
