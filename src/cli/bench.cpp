#include "cli/bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/machine.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "cli/train_inputs.h"
#include "formats/architecture.h"
#include "model/config_builder.h"
#include "model/presets.h"

namespace thimble {

std::vector<Option> with_bench_options(std::vector<Option> own, std::string_view iterations,
                                       std::string_view iterations_help) {
  own.push_back({.name = "iterations", .value = "N", .initial = iterations, .help = iterations_help});
  own.push_back({.name = "min-tps", .value = "F", .initial = "0", .help = "fail below so many tokens/s"});
  for (const Option& option : {common::threads(), common::json(), common::quiet()}) own.push_back(option);
  return own;
}

Verdict verdict_of(const Arguments& arguments, double tokens_per_second) {
  const double least = arguments.number("min-tps", {.least = 0});
  return {least, tokens_per_second >= least};
}

int exit_code(const Verdict& verdict, Console& console) {
  if (verdict.passed) return 0;
  console.log().warning("slower than the {} tokens/s asked for", verdict.least);
  return 1;
}

std::vector<Option> model_options() {
  return {
      {.name = "preset", .help = "random weights of this shape, instead of MODEL", .choices = preset_names()},
      {.name = "set", .value = "KEY=VALUE", .help = "one setting, on top of the preset", .repeated = true}};
}

ModelFile bench_model(const Arguments& arguments) {
  const bool model = arguments.given("MODEL"), preset = arguments.given("preset");
  if (model == preset)
    throw UsageError(fmt::format("expected MODEL or --preset, found {}", model ? "both" : "neither"));
  if (model) {
    if (arguments.given("set")) throw UsageError("--set is for --preset: a MODEL has its settings");
    return open_model(arguments.path("MODEL"), WeightsAs::stored);  // as `generate` and `serve` use it
  }
  ConfigBuilder settings;
  settings.preset(arguments.text("preset"));
  put_assignments(arguments, settings);
  ModelFile file;
  file.path = arguments.text("preset");
  file.format = "preset";
  file.config = settings.resolve();
  file.architecture = architecture_of(file.config.model);
  const ParamTable table(file.config.model);
  file.weights.resize(static_cast<std::size_t>(table.block_size()));
  initialise(table, static_cast<std::uint64_t>(file.config.train.seed), file.weights);
  return file;
}

std::int64_t depth_from(const Arguments& arguments, const ModelConfig& config) {
  return arguments.integer("depth", {.least = 0, .most = config.context - 1});
}

std::int64_t tokens_from(const Arguments& arguments, const ModelConfig& config) {
  const std::int64_t room = config.context - depth_from(arguments, config);
  if (!arguments.given("max-tokens")) return std::min(arguments.integer("max-tokens"), room);
  return arguments.integer("max-tokens", {.least = 1, .most = room});
}

Model model_for(ModelFile& file, const Context& context, DType dtype, const SpeedRequest& request) {
  ModelConfig& config = file.config.model;
  const std::int64_t needed = request.tokens + request.depth;
  const bool any_length = config.position != PositionKind::learned;  // those have a row for each position
  if (any_length && needed < config.context) config.context = needed;
  if (context.device() != Device::cpu && !file.stored)  // one copy there, not one in f32 and others beside it
    file.stored = std::make_shared<StoredWeights>(stored_exactly(ParamTable(config), file.weights));
  return make_model(file, context, dtype);
}

std::string device_name(const Context& context) {
  return context.device() == Device::cpu ? "cpu" : context.runtime()->facts().name;
}

std::string computed_in(const Model& model, const Context& context) {
  const std::string_view dtype = dtype_name(model.dtype());
  return context.device() == Device::cpu ? std::string(dtype)
                                         : fmt::format("{} on {}", dtype, device_name(context));
}

Json as_json(const Speed& speed) {
  Json samples = Json::array();
  for (const double rate : speed.rates) samples.push(rate);
  return Json::object()
      .set("test", speed.name)
      .set("tokens_per_second", speed.mean())
      .set("cpu_level", std::string(cpu_level_name(cpu_level())))
      .set("stddev", speed.deviation())
      .set("samples", samples);
}

std::string as_text(const Speed& speed) {
  return fmt::format("{}: {:.1f} +- {:.1f} tokens/s", speed.name, speed.mean(), speed.deviation());
}

}  // namespace thimble
