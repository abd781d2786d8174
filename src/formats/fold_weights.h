// A model in the making: its config and its tensors in double precision, by role. Steps of a fold change both;
// at the end every value is rounded to f32, once.
#pragma once

#include <map>
#include <span>
#include <utility>
#include <vector>

#include "formats/model_file.h"
#include "model/params.h"

namespace thimble {

class FoldWeights {
 public:
  using Values = std::vector<double>;

  explicit FoldWeights(const ModelFile& source);

  ModelConfig config;

  Values& at(Role role, int layer = -1);  // must be there
  void put(Role role, int layer, Values values) { tensors_[{role, layer}] = std::move(values); }
  Values take(Role role, int layer = -1);  // and it is gone

  int layers() const { return static_cast<int>(config.layers); }

  // Laid out for the config as it is now. A tensor too many, too few or of another size is an Error: a step forgot
  // something.
  std::vector<float> block() const;

 private:
  std::map<std::pair<Role, int>, Values> tensors_;
};

// Every value of it, or row r (of `columns` values) by factors[r].
void scale(FoldWeights::Values& values, double factor);
void scale_rows(FoldWeights::Values& matrix, std::span<const double> factors);

}  // namespace thimble
