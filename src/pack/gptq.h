// GPTQ: columns are rounded one after another, and those that are still to come make up for the error (Frantar et al.
// 2022; parameter-golf 2.12). What is kept small is not |W - Q| but |X W^T - X Q^T|, on inputs X that were seen.
//
//   H       X^T X averaged over rows (input_moments.h); a diagonal element of 0 becomes 1; then 0.01 of the mean of the
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
#include <map>
#include <span>
#include <vector>

#include "base/interrupt.h"
#include "base/progress.h"
#include "pack/input_moments.h"

namespace thimble {

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
