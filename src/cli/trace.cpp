#include <fmt/format.h>

#include "base/json.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/option.h"
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
  Model model = make_model(model_from(arguments, WeightsAs::floats), context,
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
      .summary = "write logits, loss and gradients of a model for given tokens",
      .arguments = {model_argument()},
      .options = {{.name = "tokens",
                   .value = "FILE",
                   .help = "safetensors file with input, and optionally target and doc_start",
                   .required = true},
                  {.name = "grad", .help = "also write the gradients of the loss, as grad.NAME"},
                  output_option("safetensors file to write"),
                  device_option(),
                  {.name = "dtype",
                   .initial = "f32",
                   .help = "number format of the computation",
                   .choices = {"auto", "f32", "bf16"}},
                  common::force(),
                  common::threads(),
                  common::json(),
                  common::quiet()},
      .examples = {"thimble trace model.safetensors --tokens tokens.safetensors --grad -o trace.safetensors"},
      .run = run_trace};
}

namespace {

std::string shape_text(const std::vector<std::int64_t>& dims) {
  return fmt::format("[{}]", joined(dims, ", "));
}

Json shape_json(const std::vector<std::int64_t>& dims) {
  return Json::array({dims.begin(), dims.end()});
}

Json names_json(const std::vector<std::string>& names) {
  return Json::array({names.begin(), names.end()});
}

Json as_json(const FileDifference& difference) {
  Json tensors = Json::array();
  for (const TensorDifference& tensor : difference.tensors) {
    Json row = Json::object().set("name", tensor.name).set("shape", shape_json(tensor.dims_a));
    if (tensor.same_shape())
      row.set("max_abs", tensor.max_abs).set("cosine", tensor.cosine).set("relative_l2", tensor.relative_l2);
    else
      row.set("other_shape", shape_json(tensor.dims_b));
    tensors.push(row);
  }
  return Json::object()
      .set("tensors", tensors)
      .set("only_a", names_json(difference.only_a))
      .set("only_b", names_json(difference.only_b))
      .set("max_abs", difference.max_abs)
      .set("equal", difference.equal);
}

std::string as_text(const FileDifference& difference) {
  Table table({"tensor", "shape", "max abs", "cosine", "relative"});
  for (const TensorDifference& tensor : difference.tensors)
    if (tensor.same_shape())
      table.row({tensor.name, shape_text(tensor.dims_a), fmt::format("{:.3g}", tensor.max_abs),
                 fmt::format("{:.9f}", tensor.cosine), fmt::format("{:.3g}", tensor.relative_l2)});
    else
      table.row(
          {tensor.name, shape_text(tensor.dims_a) + " and " + shape_text(tensor.dims_b), "-", "-", "-"});
  std::string text = table.text(page_width(0));
  for (const auto& [side, names] : {std::pair("A", &difference.only_a), std::pair("B", &difference.only_b)})
    if (!names->empty()) text += fmt::format("\nonly in {}: {}\n", side, joined(*names, ", "));
  return text + fmt::format("\n{}: {} tensors, largest difference {:.3g}\n",
                            difference.equal ? "equal" : "different", difference.tensors.size(),
                            difference.max_abs);
}

int run_diff(const Arguments& arguments, Console& console) {
  const DiffOptions options{.tolerance = arguments.number("tolerance", {.least = 0}),
                            .strict = arguments.flag("strict")};
  FileDifference difference;
  try {
    difference = compare_files(SafetensorsFile::open(arguments.path("A")),
                               SafetensorsFile::open(arguments.path("B")), options);
  } catch (const Error& error) {
    console.tell(describe(error));
    return kExitUsage;  // as in diff(1): 1 means that the files differ
  }
  if (console.json())
    console.print_json(as_json(difference));
  else
    console.print_foreign(as_text(difference));
  return difference.equal ? kExitDone : kExitFailed;
}

}  // namespace

Command diff_command() {
  return {.name = "diff",
          .summary = "compare two safetensors files tensor by tensor; exit code 1 if they differ",
          .arguments = {{.name = "A", .help = "a safetensors file"},
                        {.name = "B", .help = "another safetensors file"}},
          .options = {{.name = "tolerance",
                       .value = "F",
                       .initial = "0",
                       .help = "maximum absolute difference that counts as equal"},
                      {.name = "strict", .help = "treat tensors that only one file contains as a difference"},
                      common::json(),
                      common::quiet()},
          .notes = "Exit codes: 0 equal, 1 different, 2 a file cannot be read.",
          .examples = {"thimble diff trace.safetensors reference.safetensors --tolerance 2e-4"},
          .run = run_diff};
}

}  // namespace thimble
