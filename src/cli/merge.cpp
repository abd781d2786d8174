#include <fmt/format.h>

#include "base/error.h"
#include "base/file_ops.h"
#include "base/json.h"
#include "base/signals.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/option.h"
#include "cli/parse.h"
#include "formats/adapters.h"
#include "formats/weights_file.h"

namespace thimble {

namespace {

int run_merge(const Arguments& arguments, Console& console) {
  PosixFileOps disk;
  const Interrupt interrupt;
  InterruptibleFileOps ops(disk, interrupt);
  const Output output = output_from(arguments, ops);
  ModelFile model = model_from(arguments, WeightsAs::stored, console.progress());
  check(model.adapters != nullptr,
        Hint{"name a run that was trained with --lora-rank, or add adapters with --adapter"},
        "{} has no adapters to merge", model.path.string());
  const std::int64_t parameters = model.adapters->table.params().count();
  const std::string base = model.adapters->base.path;
  merge(model);
  make_folders(ops, folder_of(output.path));
  write_model(ops, output.path, output.existing, model, arguments.flag("half") ? DType::f16 : DType::f32, {},
              console.progress());
  if (console.json())
    console.print_json(Json::object()
                           .set("output", output.path.string())
                           .set("base", base)
                           .set("adapter_parameters", parameters)
                           .set("bytes", std::filesystem::file_size(output.path)));
  else
    console.print(fmt::format("{}: {} with {} parameters of adapters\n", output.path.string(), base,
                              with_commas(parameters)));
  return 0;
}

}  // namespace

Command merge_command() {
  return {.name = "merge",
          .summary = "add adapters to the weights of their model",
          .arguments = {model_argument()},
          .options = {{.name = "half", .help = "store the weights as f16"},
                      output_option("safetensors file to write"),
                      common::force(),
                      common::threads(),
                      common::json(),
                      common::quiet()},
          .notes =
              "MODEL is a run that was trained with --lora-rank, a PEFT folder, or any model to which "
              "--adapter adds some. Commands that take a MODEL take these too, so merging is needed only "
              "for a file of its own.",
          .examples = {"thimble merge runs/lora -o merged.safetensors",
                       "thimble merge qwen.gguf --adapter runs/lora --adapter other:0.5 -o both.safetensors"},
          .run = run_merge};
}

}  // namespace thimble
