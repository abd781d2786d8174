#include "cli/option.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/file_ops.h"
#include "base/json.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "formats/export.h"

namespace thimble {

namespace {

Json texts(const std::vector<std::string>& lines) {
  Json array = Json::array();
  for (const std::string& line : lines) array.push(line);
  return array;
}

Json as_json(const ExportReport& report, const Output& output) {
  return Json::object()
      .set("format", report.format)
      .set("architecture", report.architecture)
      .set("type", info_of(report.type).option)
      .set("tensors", report.tensors)
      .set("bytes", report.bytes)
      .set("folded", texts(report.folded))
      .set("notes", texts(report.notes))
      .set("logit_difference", report.difference)
      .set("output", output.path.string());
}

std::string as_text(const ExportReport& report, const Output& output) {
  std::string text = fmt::format("{}: {} as {}, {} tensors, {} bytes\n", output.path.string(),
                                 report.architecture, gguf_export_name(report.type), report.tensors,
                                 with_commas(static_cast<long long>(report.bytes)));
  for (const std::string& line : report.folded) text += fmt::format("folded: {}\n", line);
  for (const std::string& line : report.notes) text += fmt::format("note: {}\n", line);
  text +=
      fmt::format("verified: logits differ by {:.2g} (limit {:.2g})\n", report.difference, report.tolerance);
  return text;
}

std::vector<std::string_view> names_of(bool ExportFormat::*having = nullptr) {
  std::vector<std::string_view> names;
  for (const ExportFormat& format : export_formats())
    if (!having || format.*having) names.push_back(format.name);
  return names;
}

void check_usage(const Arguments& arguments, const ExportFormat& format) {
  for (const char* option : {"architecture", "drop-softcap"})
    if (arguments.given(option) && !format.folds)
      throw UsageError(fmt::format("--{} applies to --format {}, not {}", option,
                                   joined(names_of(&ExportFormat::folds), " or "), format.name));
  if (arguments.flag("half") && arguments.given("type"))
    throw UsageError("--half and --type cannot be combined");
  if (!arguments.given("type")) return;
  std::vector<std::string_view> types;
  for (const GgufType type : format.types) types.push_back(info_of(type).option);
  if (std::ranges::count(types, arguments.text("type")) == 0)
    throw UsageError(fmt::format("--format {} has no type {}", format.name, arguments.text("type")),
                     Hint{fmt::format("it has {}", joined(types, ", "))});
}

ExportRequest request_from(const Arguments& arguments, const ExportFormat& format, const Output& output) {
  check_usage(arguments, format);
  ExportRequest request{.path = output.path, .existing = output.existing};
  if (arguments.given("type")) request.type = gguf_type_of(arguments.text("type"));
  if (arguments.flag("half")) request.type = GgufType::f16;
  if (arguments.given("architecture")) request.architecture = arguments.text("architecture");
  request.drop_softcap = arguments.flag("drop-softcap");
  return request;
}

int run_export(const Arguments& arguments, Console& console) {
  PosixFileOps disk;
  const Interrupt interrupt;
  InterruptibleFileOps ops(disk, interrupt);
  const ExportFormat& format = export_format(arguments.text("format"));
  const Output output = output_from(arguments, ops, format.folder ? Writes::folder : Writes::file);
  ExportRequest request = request_from(arguments, format, output);
  request.interrupt = &interrupt;
  request.progress = console.progress();
  const ModelFile model = open_model(arguments.path("MODEL"), WeightsAs::floats, console.progress());
  make_folders(ops, folder_of(output.path));
  const ExportReport report = export_model(ops, model, format, request);
  if (console.json())
    console.print_json(as_json(report, output));
  else
    console.print(as_text(report, output));
  return 0;
}

// "gguf: one file for llama.cpp; hf: ..."
std::string_view formats_in_words() {
  static const std::string words = [] {
    std::vector<std::string> formats;
    for (const ExportFormat& format : export_formats())
      formats.push_back(fmt::format("{}: {}", format.name, format.what));
    return joined(formats, "; ");
  }();  // static, because Option keeps a view
  return words;
}

}  // namespace

Command export_command() {
  return {.name = "export",
          .summary = "export a model to other programs, and verify the result",
          .arguments = {model_argument()},
          .options = {{.name = "format", .help = formats_in_words(), .choices = names_of(), .required = true},
                      {.name = "type",
                       .help = "number format of matrices",
                       .choices = {"f32", "f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0"},
                       .shown_default = "f16 in GGUF, else f32"},
                      {.name = "half", .help = "same as --type f16"},
                      {.name = "architecture",
                       .help = "for gguf: architecture in llama.cpp",
                       .choices = {"llama", "qwen2", "qwen3", "apertus", "talkie"},
                       .shown_default = "the model's own, or one that it can be converted to"},
                      {.name = "drop-softcap",
                       .help = "for gguf: drop logit_softcap; changes probabilities, but not greedy text"},
                      output_option("file or folder to write"),
                      common::force(),
                      common::threads(),
                      common::json(),
                      common::quiet()},
          .examples = {"thimble export runs/chat-1 --format gguf -o chat.gguf",
                       "thimble export runs/chat-1 --format gguf --type q8_0 -o chat-q8.gguf",
                       "thimble export runs/chat-1 --format hf --type bf16 -o chat-hf"},
          .run = run_export};
}

}  // namespace thimble
