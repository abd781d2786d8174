#include "cli/option.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/file_ops.h"
#include "base/json.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "cli/train_inputs.h"
#include "config/builder.h"
#include "formats/export.h"
#include "formats/weights_file.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

// Whether options describe the model, which a bare state dict needs.
bool describes_model(const Arguments& arguments) {
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

ModelFile open_source(const Arguments& arguments, const ProgressOutput& progress) {
  const fs::path source = arguments.path("SOURCE");
  if (!describes_model(arguments)) return open_model(source, WeightsAs::floats, progress);
  if (fs::is_directory(source))
    throw UsageError(
        fmt::format("--preset, --config, --set and --prefix apply only to bare weights, but {} is a folder",
                    source.string()),
        Hint{"remove them: a Hugging Face folder describes its model"});
  if (source.extension() == ".gguf")
    throw UsageError(
        fmt::format(
            "--preset, --config, --set and --prefix apply only to bare weights, but {} is a GGUF file",
            source.string()),
        Hint{"remove them: a GGUF file describes its model"});
  return open_state_dict(source, state_dict_config(arguments), arguments.text("prefix"));
}

// Returns notes for the user.
std::vector<std::string> attach_tokenizer(ModelFile& model, const fs::path& path) {
  const auto tokenizer = load_tokenizer(path);
  model.tokenizer = TokenizerFile{
      .name = path.string(), .content = tokenizer->serialized(), .special = tokenizer->special()};
  if (model.layout.empty()) return {};
  try {
    const ChatLayout known(*tokenizer, model.layout);
    check(known.missing().empty(), "the tokenizer has no special token {}", joined(known.missing(), ", "));
    return {};
  } catch (const Error& error) {
    model.layout.clear();
    return {fmt::format("the chat layout was dropped because it does not match the new tokenizer: {}",
                        error.what())};
  }
}

std::string as_text(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += fmt::format("note: {}\n", note);
  return text;
}

void report_import(Console& console, const fs::path& path, const ModelFile& model,
                   const std::vector<std::string>& notes) {
  const ParamTable table(model.config.model);
  if (console.json())
    console.print_json(Json::object()
                           .set("output", path.string())
                           .set("architecture", model.architecture)
                           .set("parameters", table.count())
                           .set("tensors", table.all().size())
                           .set("tokenizer", model.tokenizer.has_value())
                           .set("notes", Json::array({notes.begin(), notes.end()}))
                           .set("bytes", fs::file_size(path)));
  else
    console.print(fmt::format("{}: {}, {} parameters in {} tensors, {}\n{}", path.string(),
                              model.architecture, with_commas(table.count()), table.all().size(),
                              model.tokenizer ? "with its tokenizer" : "no tokenizer", as_text(notes)));
}

int run_import(const Arguments& arguments, Console& console) {
  PosixFileOps disk;
  const Interrupt interrupt;
  InterruptibleFileOps ops(disk, interrupt);
  const Output output = output_from(arguments, ops);
  if (arguments.flag("half") && arguments.given("quantize"))
    throw UsageError("--half and --quantize cannot be combined");
  ModelFile model = open_source(arguments, console.progress());
  std::vector<std::string> notes;
  if (arguments.given("tokenizer")) notes = attach_tokenizer(model, arguments.path("tokenizer"));
  make_folders(ops, folder_of(output.path));
  if (arguments.given("quantize")) {
    ExportRequest request{.path = output.path,
                          .existing = output.existing,
                          .type = gguf_type_of(arguments.text("quantize")),
                          .interrupt = &interrupt,
                          .progress = console.progress()};
    const ExportReport report = export_model(ops, model, "gguf", request);
    notes.insert(notes.end(), report.notes.begin(), report.notes.end());
    report_import(console, output.path, model, notes);
    return 0;
  }
  write_model(ops, output.path, output.existing, model, arguments.flag("half") ? DType::f16 : DType::f32, {},
              console.progress());
  report_import(console, output.path, model, notes);
  return 0;
}

}  // namespace

Command import_command() {
  const std::vector<std::string_view> presets = preset_names();
  return {
      .name = "import",
      .summary = "convert a Hugging Face folder, a GGUF file or bare weights to a model file",
      .arguments = {{.name = "SOURCE",
                     .help = "Hugging Face folder, GGUF file, or bare weights: .safetensors, .npz or "
                             "parameter-golf's .int8.ptz"}},
      .options =
          {{.name = "preset", .help = "for bare weights: the model they belong to", .choices = presets},
           {.name = "config",
            .value = "FILE",
            .help = "for bare weights: TOML file of the model; overrides the preset"},
           {.name = "set",
            .value = "KEY=VALUE",
            .help = "for bare weights: one setting; overrides both",
            .repeated = true},
           {.name = "prefix",
            .value = "S",
            .help = "for bare weights: prefix of tensor names; tensors without it are ignored"},
           {.name = "tokenizer", .value = "FILE", .help = "tokenizer to use instead of the one in SOURCE"},
           {.name = "half", .help = "store the weights as f16"},
           {.name = "quantize",
            .help = "write a GGUF with matrices of this type instead of safetensors",
            .choices = {"q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0"}},
           output_option("file to write: safetensors, or GGUF with --quantize"),
           common::force(),
           common::threads(),
           common::json(),
           common::quiet()},
      .examples = {"thimble import Qwen2.5-0.5B -o qwen.safetensors",
                   "thimble import Qwen2.5-0.5B --quantize q4_k_m -o qwen.gguf",
                   "thimble import weights.safetensors --preset golf --set layers=11 -o golf.safetensors"},
      .run = run_import};
}

}  // namespace thimble
