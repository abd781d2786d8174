#include "train/initial_weights.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace thimble {

namespace {

// Settings that do not affect the meaning of the weights.
bool may_differ(const Key& key) {
  static constexpr std::string_view kKeys[] = {"context", "dropout",  "isolate",
                                               "init",    "init_std", "embed_init_std"};
  return std::ranges::find(kKeys, key.name) != std::end(kKeys);
}

}  // namespace

void take_model_settings(const ModelFile& from, bool preset_was_named, ConfigBuilder& settings) {
  settings.derive("vocab_size", from.config.model.vocab_size);
  if (!preset_was_named) {
    for (const Key& key : all_keys())
      if (key.of_model()) settings.derive(key.name, key.get(from.config));
    return;
  }
  std::vector<std::string> problems;
  const Config expected{.model = resolved(settings.current().model)};
  for (const Key& key : all_keys()) {
    const KeyValue theirs = key.get(from.config), ours = key.get(expected);
    if (key.of_model() && !settings.given(key.name) && theirs != ours && !may_differ(key))
      problems.push_back(
          fmt::format("{} is {}, the preset has {}", key.name, value_text(theirs), value_text(ours)));
  }
  check(problems.empty(), Hint{"leave out --preset: the settings are taken from the model"},
        "{} does not match the preset: {}", from.path.string(), listed(problems));
}

void check_fits(const ModelFile& from, const ModelConfig& config) {
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
  check(problems.empty(), Hint{"leave out the settings that change the model's shape"},
        "{} does not fit the new model: {}", from.path.string(), listed(problems));
}

void copy_weights(const ModelFile& from, const ModelConfig& config, std::span<float> weights) {
  check_fits(from, config);
  const ParamTable theirs(from.config.model), ours(config);
  for (const Param& param : ours.all())
    std::ranges::copy(theirs.find(param.name)->in(std::span(from.weights)), param.in(weights).begin());
}

void check_same_tokens(const ModelFile& from, const Tokenizer& tokenizer) {
  const auto theirs = open_tokenizer(from);
  if (!theirs) return;
  const auto is_text = [](TokenType type) {
    return type == TokenType::normal || type == TokenType::byte || type == TokenType::user_defined;
  };
  std::int64_t different = 0;
  TokenId first = 0;
  for (TokenId id = std::min(theirs->vocab_size(), tokenizer.vocab_size()) - 1; id >= 0; --id) {
    if (!is_text(theirs->token_type(id)) || !is_text(tokenizer.token_type(id))) continue;
    if (bytes_of_token(*theirs, id) == bytes_of_token(tokenizer, id)) continue;
    ++different;
    first = id;
  }
  check(
      different == 0, Hint{"leave out --tokenizer, or build the data with the model's tokenizer"},
      "{} was trained with a different tokenizer: {} tokens differ; the first is id {}, {} in the model and "
      "{} in the tokenizer",
      from.path.string(), different, first, Json(bytes_of_token(*theirs, first)).dump(),
      Json(bytes_of_token(tokenizer, first)).dump());
}

void check_finite(const ParamTable& params, std::span<const float> weights) {
  for (const Param& param : params.all()) {
    check(std::ranges::all_of(param.in(weights), [](float value) { return std::isfinite(value); }),
          Hint{"start from another model: this one is damaged or its training diverged"},
          "the initial weights are not finite: {} contains NaN or infinity", param.name);
  }
}

}  // namespace thimble
