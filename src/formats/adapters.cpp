#include "formats/adapters.h"

#include <span>

#include "base/digest.h"
#include "base/error.h"
#include "model/stored_weights.h"

namespace thimble {

namespace {

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data), static_cast<std::size_t>(tensor.shape().bytes())};
}

// Of the tensors' values in table order. The place of the file does not matter.
std::string digest_of_weights(const ModelFile& model) {
  const ParamTable table(model.config.model);
  Digester digester;
  for (const Param& param : table.all()) {
    const StoredWeights::Stored stored = model.stored->tensor(param);
    digester.add(param.name);
    if (stored.values.dtype != DType::blocks) {
      digester.add(bytes_of(stored.values));
      if (stored.scales) digester.add(bytes_of(stored.scales));
      continue;
    }
    for (const BlockRows& part : block_matrix(stored.values).parts)
      digester.add({part.data, static_cast<std::size_t>(part.rows * part.row_bytes())});
  }
  model.stored->check_files();
  return digester.result().hex();
}

}  // namespace

AdapterBase base_of(const ModelFile& model) {
  return {std::filesystem::absolute(model.path).lexically_normal().string(), digest_of_weights(model)};
}

FrozenModel frozen(ModelFile model, Device device, DType dtype) {
  AdapterBase base = base_of(model);
  const auto convert = device == Device::cpu ? stored_for_rows : stored_for_gpu;
  return {std::move(base), convert(ParamTable(model.config.model), std::move(model.stored), dtype)};
}

ModelFile open_base(const AdapterBase& base, std::string_view user, const ProgressOutput& progress) {
  std::error_code missing;
  check(std::filesystem::exists(base.path, missing), Hint{"put the model back, or train the adapters again"},
        "{} contains adapters for {}, which does not exist", user, base.path);
  ModelFile model = open_model(base.path, WeightsAs::stored, progress);
  const std::string digest = digest_of_weights(model);
  check(digest == base.digest, Hint{"restore the model that the adapters were trained on"},
        "{} contains adapters for another version of {}: expected weights with digest {}, found {}", user,
        base.path, base.digest, digest);
  return model;
}

}  // namespace thimble
