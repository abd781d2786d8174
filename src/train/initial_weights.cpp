#include "train/initial_weights.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/joined.h"
#include "formats/problems.h"

namespace thimble {

namespace {

// Settings that do not change what the weights mean.
bool may_differ(const Key& key) {
  static constexpr std::string_view kKeys[] = {"context", "dropout",  "isolate",       "loop_on",
                                               "init",    "init_std", "embed_init_std"};
  return std::ranges::find(kKeys, key.name) != std::end(kKeys);
}

}  // namespace

void take_model_settings(const ModelFile& from, bool preset_was_named, ConfigBuilder& settings) {
  settings.derive("vocab_size", from.config.model.vocab_size);
  if (!preset_was_named) {
    for (const Key& key : all_keys())
      if (!key.training && key.name != "loop_on") settings.derive(key.name, key.get(from.config));
    return;
  }
  std::vector<std::string> problems;
  const Config wanted{resolved(settings.current().model), {}};
  for (const Key& key : all_keys()) {
    const KeyValue theirs = key.get(from.config), ours = key.get(wanted);
    if (!key.training && !settings.given(key.name) && theirs != ours && !may_differ(key))
      problems.push_back(
          fmt::format("{} is {}, the preset's {}", key.name, value_text(theirs), value_text(ours)));
  }
  check(problems.empty(), Hint{"leave out --preset: the model brings its own settings"},
        "{} is another model: {}", from.path.string(), listed(problems));
}

std::vector<float> initial_weights(const ModelFile& from, const ModelConfig& config) {
  const ParamTable theirs(from.config.model), ours(config);
  std::vector<std::string> problems;
  for (const Param& param : ours.all()) {
    const Param* source = theirs.find(param.name);
    if (!source)
      problems.push_back(fmt::format("{} is missing", param.name));
    else if (source->dims != param.dims)
      problems.push_back(fmt::format("{} is [{}], expected [{}]", param.name, joined(source->dims, ", "),
                                     joined(param.dims, ", ")));
  }
  for (const Param& param : theirs.all())
    if (!ours.find(param.name))
      problems.push_back(fmt::format("{} is not part of the new model", param.name));
  check(problems.empty(), Hint{"leave out what changes the model's shape"}, "{} does not fit: {}",
        from.path.string(), listed(problems));

  std::vector<float> weights(static_cast<std::size_t>(ours.block_size()));
  for (const Param& param : ours.all())
    std::copy_n(from.weights.begin() + theirs.find(param.name)->offset, param.count(),
                weights.begin() + param.offset);
  return weights;
}

void check_finite(const ParamTable& params, std::span<const float> weights) {
  for (const Param& param : params.all()) {
    const auto values =
        weights.subspan(static_cast<std::size_t>(param.offset), static_cast<std::size_t>(param.count()));
    check(std::ranges::all_of(values, [](float value) { return std::isfinite(value); }),
          Hint{"the model is damaged, or its training diverged: start from another"},
          "the weights to start from are not finite: {} holds NaN or infinity", param.name);
  }
}

}  // namespace thimble
