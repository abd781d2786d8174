#include "cli/trace.h"

#include <fmt/format.h>

#include "base/json.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/device.h"
#include "cli/output.h"
#include "cli/parse.h"
#include "formats/model_file.h"
#include "formats/trace.h"

namespace thimble {

namespace {

int run_trace(const Arguments& arguments, Console& console) {
  PosixFileOps ops;
  const Output output = output_from(arguments, ops);
  const TraceTokens tokens = read_trace_tokens(SafetensorsFile::open(arguments.path("tokens")));
  const Context context(device_from(arguments, console.log()));
  Model model = make_model(open_model(arguments.path("MODEL")), context,
                           dtype_from(arguments, context.device(), console.log()));
  make_folders(ops, folder_of(output.path));
  const TraceSummary summary = write_trace(
      ops, output.path, model, tokens, {.gradients = arguments.flag("grad"), .existing = output.existing});
  if (console.json()) {
    console.print_json(Json::object()
                           .set("loss", summary.loss ? Json(*summary.loss) : Json())
                           .set("tokens", tokens.input.size())
                           .set("scored", summary.scored)
                           .set("output", output.path.string()));
  } else {
    const std::string loss = summary.loss ? fmt::format("loss {:.6f}", *summary.loss) : "no loss";
    console.print(fmt::format("{} over {} of {} positions\n", loss, with_commas(summary.scored),
                              with_commas(static_cast<long long>(tokens.input.size()))));
  }
  return 0;
}

}  // namespace

Command trace_command() {
  return {
      .name = "trace",
      .summary = "logits, loss and gradients of a model for given tokens",
      .arguments = {{.name = "MODEL",
                     .help = "run folder, checkpoint, artifact, GGUF or Hugging Face folder"}},
      .options = {{.name = "tokens",
                   .value = "FILE",
                   .help = "safetensors with input, and target and doc_start if there are any",
                   .required = true},
                  {.name = "grad", .help = "also the gradient of the loss, as grad.NAME"},
                  output_option("safetensors file to write"),
                  device_option(),
                  {.name = "dtype",
                   .initial = "f32",
                   .help = "what to compute in",
                   .choices = {"auto", "f32", "bf16"}},
                  common::force(),
                  common::threads(),
                  common::json(),
                  common::quiet()},
      .examples = {"thimble trace model.safetensors --tokens tokens.safetensors --grad -o trace.safetensors"},
      .run = run_trace};
}

}  // namespace thimble
