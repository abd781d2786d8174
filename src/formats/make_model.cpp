// Separate from model_file.cpp, so that programs that only read files (the fuzzers) need not link
// the engine.
#include <algorithm>

#include "formats/model_file.h"
#include "model/stored_weights.h"

namespace thimble {

Model make_model(const ModelFile& file, const Context& context, DType dtype) {
  const ModelConfig& config = file.config.model;
  if (file.stored) {
    const auto stored_as = context.device() == Device::cpu ? stored_for_rows : stored_for_gpu;
    // Shares the owner of the adapters.
    const std::shared_ptr<const AdapterTable> table(file.adapters,
                                                    file.adapters ? &file.adapters->table : nullptr);
    Model model(config, context, dtype, stored_as(ParamTable(config), file.stored, dtype), table);
    model.set_loop(file.config.state.loop_on);
    if (!table) return model;
    std::ranges::copy(file.adapters->values, model.weights().begin());
    model.weights_changed();
    return model;
  }
  Model model(config, context, dtype);
  model.set_loop(file.config.state.loop_on);
  std::ranges::copy(file.weights, model.weights().begin());
  model.weights_changed();
  return model;
}

}  // namespace thimble
