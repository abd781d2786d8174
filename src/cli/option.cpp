#include "cli/option.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "cli/parse.h"
#include "data/text_files.h"
#include "formats/model_file.h"
#include "infer/constraint.h"
#include "model/model.h"
#include "ops/cuda_plugin.h"

namespace thimble {

namespace common {

Option json() {
  return {.name = "json", .help = "print the result as one JSON object", .common = true};
}
Option quiet() {
  return {.name = "quiet", .letter = 'q', .help = "print only warnings and errors", .common = true};
}
Option force() {
  return {.name = "force", .letter = 'f', .help = "overwrite existing output", .common = true};
}
Option threads() {
  return {.name = "threads",
          .value = "N",
          .help = "number of CPU threads",
          .common = true,
          .shown_default = "all available"};
}
Option device() {
  return {.name = "device",
          .initial = "auto",
          .help = "device to compute on",
          .choices = {"auto", "cpu", "cuda"},
          .common = true};
}
Option dtype() {
  return {.name = "dtype",
          .initial = "auto",
          .help = "number format of the computation; f16 needs CUDA",
          .choices = {"auto", "f32", "bf16", "f16"},
          .common = true};
}
Option seed() {
  return {
      .name = "seed", .value = "N", .initial = "1337", .help = "seed of all random numbers", .common = true};
}

}  // namespace common

namespace {

Option adapter_option() {
  return {.name = "adapter",
          .value = "FILE[:SCALE]",
          .help = "add the adapters of a run with lora_rank or of a PEFT folder",
          .repeated = true};
}

}  // namespace

std::vector<Option> options_of(const Command& command) {
  std::vector<Option> options = command.options;
  if (std::ranges::any_of(command.arguments, &Argument::takes_adapters)) options.push_back(adapter_option());
  std::stable_partition(options.begin(), options.end(), [](const Option& option) { return !option.common; });
  if (std::ranges::any_of(options, &Option::advanced))
    options.push_back({.name = "help-all", .help = "show all options", .common = true});
  options.push_back({.name = "help", .letter = 'h', .help = "show this help", .common = true});
  return options;
}

std::string value_of(const Option& option) {
  if (option.choices.empty() || !option.value.empty()) return std::string(option.value);
  return joined(option.choices, "|");
}

std::string described(const Option& option) {
  std::string text(option.help);
  if (option.required) text += " (required)";
  if (option.repeated) text += " (may be repeated)";
  const std::string& initial = option.shown_default.empty() ? option.initial : option.shown_default;
  if (!initial.empty()) text += fmt::format(" (default: {})", initial);
  return text;
}

std::string usage_of(const Argument& argument) {
  std::string name = argument.choices.empty() ? std::string(argument.name) : joined(argument.choices, "|");
  switch (argument.count) {
    case Count::one:
      return name;
    case Count::optional:
      return fmt::format("[{}]", name);
    case Count::many:
      return fmt::format("{}...", name);
    case Count::any:
      return fmt::format("[{}]...", name);
  }
  return name;
}

std::string usage_of(const Command& command) {
  std::string line = fmt::format("thimble {}", command.name);
  for (const Argument& argument : command.arguments) line += " " + usage_of(argument);
  for (const Option& option : command.options)
    if (option.required)
      line += option.letter ? fmt::format(" -{} {}", option.letter, value_of(option))
                            : fmt::format(" --{} {}", option.name, value_of(option));
  return line + " [options]";
}

Argument model_argument(Count count) {
  return {.name = "MODEL", .help = model_kinds_text(), .count = count, .takes_adapters = true};
}

std::vector<NamedAdapter> adapters_from(const Arguments& arguments) {
  std::vector<NamedAdapter> adapters;
  for (const std::string& text : arguments.list("adapter")) {
    NamedAdapter adapter{.path = text};
    const std::size_t colon = text.rfind(':');
    if (!std::filesystem::exists(adapter.path) && colon != std::string::npos) {
      const auto scale = parse_number<double>(std::string_view(text).substr(colon + 1));
      if (!scale || !std::isfinite(*scale))
        throw UsageError(fmt::format("--adapter expects FILE or FILE:SCALE, found '{}'", text));
      adapter = {.path = text.substr(0, colon), .scale = *scale};
    }
    check(std::filesystem::exists(adapter.path), "--adapter: {} does not exist", adapter.path.string());
    adapters.push_back(std::move(adapter));
  }
  return adapters;
}

ModelFile model_from(const Arguments& arguments, WeightsAs as, const ProgressOutput& progress) {
  return open_adapted(arguments.path("MODEL"), adapters_from(arguments), as, progress);
}

Option output_option(std::string_view help) {
  return {.name = "output", .letter = 'o', .value = "FILE", .help = help, .required = true};
}

Output output_from(const Arguments& arguments, FileOps& ops, Writes writes, std::string_view option) {
  const bool force = arguments.flag("force");
  Output output{arguments.path(option), force ? Existing::replace : Existing::refuse};
  if (!output.path.has_filename()) output.path = output.path.parent_path();  // "folder/"
  const PathKind kind = ops.kind(output.path);
  check(writes == Writes::folder || kind != PathKind::folder, Hint{"pass the name of a file"},
        "cannot write {}: it is a folder", output.path.string());
  if (!force && kind != PathKind::nothing)
    fail(Hint{fmt::format("choose another name with {}, or pass --force to overwrite it",
                          option == "output" ? "-o" : fmt::format("--{}", option))},
         "{} already exists", output.path.string());
  return output;
}

namespace {

// A launcher may make a single GPU visible to each rank; that GPU has index 0.
int visible_number(int gpu) {
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string_view gpus = text ? text : "";
  return !gpus.empty() && gpus.find(',') == gpus.npos ? 0 : gpu;
}

}  // namespace

Option device_option() {
  Option option = common::device();
  option.initial = "cpu";
  return option;
}

std::shared_ptr<DeviceRuntime> device_from(const Arguments& arguments, const Log& log, int gpu) {
  const std::string& device = arguments.text("device");
  if (device == "cpu") return cpu_runtime();
  if (device == "cuda") return open_cuda(visible_number(gpu));
  DeviceChoice choice = choose_device(visible_number(gpu));
  if (choice.runtime->device() == Device::cuda)
    log.info("device: {}", choice.reason);
  else
    log.info("device: CPU ({})", choice.reason);
  return choice.runtime;
}

DType dtype_from(const Arguments& arguments, Device device, const Log& log) {
  const std::string& name = arguments.text("dtype");
  const ComputeDType requested = name == "auto"  ? ComputeDType::automatic
                                 : name == "f32" ? ComputeDType::f32
                                 : name == "f16" ? ComputeDType::f16
                                                 : ComputeDType::bf16;
  const std::string notice = dtype_notice(requested, device, cpu_features());
  if (!notice.empty()) log.info("{}", notice);
  return compute_dtype(requested, device);
}

namespace {

constexpr std::uint64_t kLongestConstraint = 1 << 20;  // bytes of a file
constexpr double kLargest = 1000;                      // of values without a natural limit

float number(const Arguments& arguments, std::string_view name, Range<double> range) {
  return static_cast<float>(arguments.number(name, range));
}

}  // namespace

std::vector<Option> with_sampling_options(std::vector<Option> own) {
  std::vector<Option> options = {
      {.name = "temperature",
       .value = "F",
       .initial = "0.8",
       .help = "sampling temperature; 0: always the most probable token"},
      {.name = "greedy", .help = "same as --temperature 0"},
      {.name = "top-k",
       .value = "N",
       .initial = "0",
       .help = "sample from the N most probable tokens; 0: from all"},
      {.name = "top-p",
       .value = "F",
       .initial = "1",
       .help = "sample from the smallest set of tokens with total probability F"},
      {.name = "min-p",
       .value = "F",
       .initial = "0",
       .help = "drop tokens less than F times as probable as the most probable one"},
      {.name = "repeat-penalty",
       .value = "F",
       .initial = "1",
       .help = "factor by which recent tokens become less probable; 1: off"},
      {.name = "repeat-last-n",
       .value = "N",
       .initial = "64",
       .help = "number of recent tokens to which --repeat-penalty applies; -1: all"},
      {.name = "frequency-penalty",
       .value = "F",
       .initial = "0",
       .help = "subtract F from a token's logit for each time it was generated"},
      {.name = "presence-penalty",
       .value = "F",
       .initial = "0",
       .help = "subtract F from a token's logit once it was generated"},
      {.name = "seed",
       .value = "N",
       .help = "seed of the random numbers; the same seed gives the same text",
       .common = true,
       .shown_default = "random"}};
  options.insert(options.end(), own.begin(), own.end());
  return options;
}

SamplingOptions sampling_from(const Arguments& arguments) {
  SamplingOptions options;
  if (arguments.flag("greedy") && arguments.given("temperature") && arguments.number("temperature") != 0)
    throw UsageError("expected --greedy or --temperature, found both");
  options.temperature =
      arguments.flag("greedy") ? 0 : number(arguments, "temperature", {.least = 0, .most = kLargest});
  options.top_k = arguments.integer("top-k", {.least = 0});
  options.top_p = number(arguments, "top-p", {.least = 0, .most = 1});
  options.min_p = number(arguments, "min-p", {.least = 0, .most = 1});
  options.repetition_penalty = number(arguments, "repeat-penalty", {.least = 0.01, .most = kLargest});
  options.repeat_last_n = arguments.integer("repeat-last-n", {.least = -1});
  options.frequency_penalty = number(arguments, "frequency-penalty", {.least = -kLargest, .most = kLargest});
  options.presence_penalty = number(arguments, "presence-penalty", {.least = -kLargest, .most = kLargest});
  options.seed = arguments.given("seed") ? static_cast<std::uint64_t>(arguments.integer("seed", {.least = 0}))
                 : options.temperature > 0 ? random_seed()
                                           : 0;
  return options;
}

std::vector<Option> constraint_options() {
  return {{.name = "json-schema",
           .value = "FILE",
           .help = "generate JSON that is valid against this JSON Schema",
           .group = "constraints"},
          {.name = "grammar",
           .value = "FILE",
           .help = "generate text of this grammar, in the notation of llama.cpp (GBNF)",
           .group = "constraints"},
          {.name = "regex",
           .value = "RE",
           .help = "generate text that this regular expression matches completely",
           .group = "constraints"},
          {.name = "choice",
           .value = "A,B",
           .help = "generate one of these texts, separated by commas",
           .group = "constraints"}};
}

std::shared_ptr<Constraint> constraint_from(const Arguments& arguments, ConstraintCompiler& compiler) {
  std::vector<std::string> given;
  for (const Option& option : constraint_options())
    if (arguments.given(option.name)) given.push_back(fmt::format("--{}", option.name));
  if (given.empty()) return nullptr;
  if (given.size() > 1)
    throw UsageError(fmt::format("expected one of {}, found both", joined(given, " and ")));
  const auto compile_file = [&](std::string_view option, ConstraintKind kind) {
    const std::string path = arguments.text(option);
    std::string text = read_text_file(path, kLongestConstraint);
    if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
    try {
      return compiler.compile({.kind = kind, .text = std::move(text)});
    } catch (const Error& error) {
      fail(Hint{error.hint()}, "{}: {}", path, error.what());
    }
  };
  if (arguments.given("json-schema")) return compile_file("json-schema", ConstraintKind::json_schema);
  if (arguments.given("grammar")) return compile_file("grammar", ConstraintKind::gbnf);
  const auto compile = [&](const ConstraintSource& source) {
    try {
      return compiler.compile(source);
    } catch (const Error& error) {
      throw UsageError(fmt::format("{}: {}", given[0], error.what()), Hint{error.hint()});
    }
  };
  if (arguments.given("regex"))
    return compile({.kind = ConstraintKind::regex, .text = arguments.text("regex")});
  ConstraintSource choices{.kind = ConstraintKind::choice};
  const std::string list = arguments.text("choice");
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    choices.choices.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return compile(choices);
}

std::int64_t min_tokens_from(const Arguments& arguments) {
  const std::int64_t least = arguments.integer("min-tokens", {.least = 0});
  const bool limited = !arguments.text("max-tokens").empty();
  if (limited && least > arguments.integer("max-tokens"))
    throw UsageError(fmt::format("--min-tokens ({}) must be at most --max-tokens ({})", least,
                                 arguments.integer("max-tokens")));
  return least;
}

}  // namespace thimble
