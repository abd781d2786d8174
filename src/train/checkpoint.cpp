#include "train/checkpoint.h"

#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/number.h"
#include "base/version.h"
#include "formats/model_file.h"
#include "formats/state_dict.h"
#include "model/config_toml.h"

namespace thimble {

namespace {

std::string to_json(const TrainState& state) {
  return Json::object()
      .set("step", state.step)
      .set("tokens", state.tokens)
      .set("epoch", state.position.epoch)
      .set("window", state.position.window)
      .set("best_val_loss", state.best_val_loss)
      .set("best_step", state.best_step)
      .set("validation_due", state.validation_due)
      .set("elapsed_seconds", state.elapsed_seconds)
      .set("data_digest", state.data_digest)
      .dump();
}

TrainState state_from_json(const std::string& text, std::string_view name) {
  const Json json = parse_json(text, name);
  TrainState state;
  state.step = json.at("step").as_int();
  state.tokens = json.at("tokens").as_int();
  state.position = {json.at("epoch").as_uint(), json.at("window").as_uint()};
  state.best_val_loss = json.at("best_val_loss").as_double();
  state.best_step = json.at("best_step").as_int();
  state.validation_due = json.at("validation_due").as_bool();
  state.elapsed_seconds = json.at("elapsed_seconds").as_double();
  state.data_digest = json.at("data_digest").as_string();
  check(state.step >= 0 && state.tokens >= 0 && state.best_step >= -1 && state.elapsed_seconds >= 0,
        "{}: the training state is out of range", name);
  return state;
}

void add_text(SafetensorsWriter& writer, std::string_view name, const std::string& text) {
  writer.add(std::string(name), DType::u8, {static_cast<std::int64_t>(text.size())},
             std::as_bytes(std::span(text)));
}

std::string text_of(const SafetensorsFile& file, std::string_view name) {
  const auto bytes = file.bytes(name);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string moment_name(char moment, const Param& param) {
  return fmt::format("optim.{}.{}", moment, param.name);
}

}  // namespace

void write_checkpoint(FileOps& ops, const std::filesystem::path& path, const Config& config,
                      const TrainState& state, const Tokenizer& tokenizer, Model& model,
                      Optimizer& optimizer) {
  const std::string tokenizer_file = tokenizer.serialized(), train_state = to_json(state);
  SafetensorsWriter writer;
  writer.set_metadata(std::string(kConfigKey), to_toml(config));
  writer.set_metadata(std::string(kStepKey), fmt::format("{}", state.step));
  writer.set_metadata(std::string(kVersionKey), std::string(version()));
  const SpecialIds& special = tokenizer.special();
  if (special.bos) writer.set_metadata(std::string(kBosKey), fmt::format("{}", *special.bos));
  if (special.eos) writer.set_metadata(std::string(kEosKey), fmt::format("{}", *special.eos));
  add_state_dict(writer, model.params(), "", model.weights());
  for (const Param& param : model.params().all()) {
    writer.add(moment_name('m', param), DType::f32, param.dims, std::as_bytes(optimizer.first_moment(param)));
    const auto second = optimizer.second_moment(param);
    if (!second.empty()) writer.add(moment_name('v', param), DType::f32, param.dims, std::as_bytes(second));
  }
  add_text(writer, kTokenizerTensor, tokenizer_file);
  add_text(writer, kTrainStateTensor, train_state);
  writer.write(ops, path, Existing::replace, WithDigest::yes);
}

namespace {

std::optional<TokenId> id_in_metadata(const SafetensorsFile& file, std::string_view key) {
  const std::string* text = file.find_metadata(key);
  return text ? number_in<TokenId>(*text) : std::nullopt;
}

}  // namespace

CheckpointHead read_checkpoint_head(const SafetensorsFile& file) {
  verify_digest(file);
  const std::string* config = file.find_metadata(kConfigKey);
  check(config && file.find(kTrainStateTensor), Hint{"--init starts a new run from other weights"},
        "{} is no checkpoint of a training run", file.name());
  const SpecialIds special{
      .bos = id_in_metadata(file, kBosKey), .eos = id_in_metadata(file, kEosKey), .unk = {}, .pad = {}};
  return {config_from_toml(*config, file.name()),
          state_from_json(text_of(file, kTrainStateTensor), file.name()),
          load_tokenizer_bytes(text_of(file, kTokenizerTensor), file.name(), special)};
}

void restore_checkpoint(const SafetensorsFile& file, Model& model, Optimizer& optimizer) {
  read_state_dict(file, model.params(), "", model.weights(), [](std::string_view name) {
    return name.starts_with("optim.") || name.starts_with("thimble.");
  });
  model.weights_changed();
  for (const Param& param : model.params().all()) {
    file.read_f32(moment_name('m', param), optimizer.first_moment(param));
    const auto second = optimizer.second_moment(param);
    if (!second.empty()) file.read_f32(moment_name('v', param), second);
  }
}

}  // namespace thimble
