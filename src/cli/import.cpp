#include "cli/option.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/file_ops.h"
#include "base/json.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "cli/train_inputs.h"
#include "config/builder.h"
#include "formats/weights_file.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

// A bare state dict is whatever these say; everything else knows by itself what it is.
bool says_what_it_is(const Arguments& arguments) {
  return arguments.given("preset") || arguments.given("config") || arguments.given("set") ||
         arguments.given("prefix");
}

Config state_dict_config(const Arguments& arguments) {
  ConfigBuilder settings;
  if (arguments.given("preset")) settings.preset(arguments.text("preset"));
  if (arguments.given("config")) settings.file(arguments.path("config"));
  put_assignments(arguments, settings);
  return settings.resolve();
}

ModelFile open_source(const Arguments& arguments) {
  const fs::path source = arguments.path("SOURCE");
  if (!says_what_it_is(arguments)) return open_model(source);
  if (fs::is_directory(source))
    throw UsageError(
        fmt::format("--preset, --config, --set and --prefix are for bare state dicts, {} is a folder",
                    source.string()),
        Hint{"a Hugging Face folder says itself what model it holds"});
  if (source.extension() == ".gguf")
    throw UsageError(
        fmt::format("--preset, --config, --set and --prefix are for bare state dicts, {} is a GGUF",
                    source.string()),
        Hint{"a GGUF says itself what model it holds"});
  return open_state_dict(source, state_dict_config(arguments), arguments.text("prefix"));
}

// What a user should know, a sentence each.
std::vector<std::string> attach_tokenizer(ModelFile& model, const fs::path& path) {
  const auto tokenizer = load_tokenizer(path);
  model.tokenizer = TokenizerFile{
      .name = path.string(), .content = tokenizer->serialized(), .special = tokenizer->special()};
  if (model.layout.empty()) return {};
  try {
    const ChatLayout known(*tokenizer, model.layout);
    return {};
  } catch (const Error& error) {
    model.layout.clear();
    return {fmt::format("its chat layout went with its tokenizer: {}", error.what())};
  }
}

std::string as_text(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += fmt::format("note: {}\n", note);
  return text;
}

int run_import(const Arguments& arguments, Console& console) {
  PosixFileOps disk;
  const Interrupt interrupt;
  InterruptibleFileOps ops(disk, interrupt);
  const Output output = output_from(arguments, ops);
  ModelFile model = open_source(arguments);
  std::vector<std::string> notes;
  if (arguments.given("tokenizer")) notes = attach_tokenizer(model, arguments.path("tokenizer"));
  make_folders(ops, folder_of(output.path));
  write_model(ops, output.path, output.existing, model, arguments.flag("half") ? DType::f16 : DType::f32);
  const ParamTable table(model.config.model);
  if (console.json())
    console.print_json(Json::object()
                           .set("output", output.path.string())
                           .set("architecture", model.architecture)
                           .set("parameters", table.count())
                           .set("tensors", table.all().size())
                           .set("tokenizer", model.tokenizer.has_value())
                           .set("notes", Json::array({notes.begin(), notes.end()}))
                           .set("bytes", fs::file_size(output.path)));
  else
    console.print(fmt::format("{}: {}, {} parameters in {} tensors, {}\n{}", output.path.string(),
                              model.architecture, with_commas(table.count()), table.all().size(),
                              model.tokenizer ? "with its tokenizer" : "no tokenizer", as_text(notes)));
  return 0;
}

}  // namespace

Command import_command() {
  const std::vector<std::string_view> presets = preset_names();
  return {
      .name = "import",
      .summary = "make a model file of a Hugging Face folder or of bare weights",
      .arguments = {{.name = "SOURCE",
                     .help =
                         "Hugging Face folder, GGUF, or weights as safetensors, .npz or golf's .int8.ptz"}},
      .options = {{.name = "preset", .help = "bare weights: what model they are of", .choices = presets},
                  {.name = "config", .value = "FILE", .help = "bare weights: the same as a TOML file"},
                  {.name = "set",
                   .value = "KEY=VALUE",
                   .help = "bare weights: one setting, on top of both",
                   .repeated = true},
                  {.name = "prefix",
                   .value = "S",
                   .help = "bare weights: what stands before each name; other tensors are passed over"},
                  {.name = "tokenizer",
                   .value = "FILE",
                   .help = "tokenizer to put in, instead of the source's own"},
                  {.name = "half", .help = "store the weights as f16"},
                  output_option("safetensors file to write"),
                  common::force(),
                  common::threads(),
                  common::json(),
                  common::quiet()},
      .examples = {"thimble import Qwen2.5-0.5B -o qwen.safetensors",
                   "thimble import weights.safetensors --preset golf --set layers=11 -o golf.safetensors"},
      .run = run_import};
}

}  // namespace thimble
