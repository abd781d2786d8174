#include "formats/fold_weights.h"

#include <algorithm>

#include "base/error.h"

namespace thimble {

FoldWeights::FoldWeights(const ModelFile& source) : config(source.config.model) {
  const ParamTable table(config);
  check(std::cmp_equal(source.weights.size(), table.block_size()), "[fold] {} weights for a block of {}",
        source.weights.size(), table.block_size());
  for (const Param& param : table.all()) {
    const auto values = param.in(std::span(source.weights));
    put(param.role, param.layer, Values(values.begin(), values.end()));
  }
}

FoldWeights::Values& FoldWeights::at(Role role, int layer) {
  const auto found = tensors_.find({role, layer});
  check(found != tensors_.end(), "[fold] no tensor of role {} in layer {}", static_cast<int>(role), layer);
  return found->second;
}

FoldWeights::Values FoldWeights::take(Role role, int layer) {
  Values values = std::move(at(role, layer));
  tensors_.erase({role, layer});
  return values;
}

std::vector<float> FoldWeights::block() const {
  const ParamTable table(config);
  std::vector<float> block(static_cast<std::size_t>(table.block_size()));
  for (const Param& param : table.all()) {
    const auto found = tensors_.find({param.role, param.layer});
    check(found != tensors_.end() && std::cmp_equal(found->second.size(), param.count()),
          "[fold] expected {} values for {}, found {}", param.count(), param.name,
          found == tensors_.end() ? 0 : found->second.size());
    std::ranges::transform(found->second, block.begin() + param.offset,
                           [](double value) { return static_cast<float>(value); });
  }
  check(tensors_.size() == table.all().size(), "[fold] {} tensors, the folded model has {}", tensors_.size(),
        table.all().size());
  return block;
}

void scale(FoldWeights::Values& values, double factor) {
  for (double& value : values) value *= factor;
}

void scale_rows(FoldWeights::Values& matrix, std::span<const double> factors) {
  check(!factors.empty() && matrix.size() % factors.size() == 0, "[fold] {} values in {} rows", matrix.size(),
        factors.size());
  const std::size_t columns = matrix.size() / factors.size();
  for (std::size_t i = 0; i < matrix.size(); ++i) matrix[i] *= factors[i / columns];
}

}  // namespace thimble
