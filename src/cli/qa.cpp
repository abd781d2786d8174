#include "cli/option.h"

#include <fmt/format.h>

#include "base/json.h"
#include "base/signals.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "data/text_files.h"
#include "qa/gates.h"

namespace thimble {

namespace {

Json as_json(const QaRequest& request, const QaReport& report) {
  Json gates = Json::array();
  for (const GateResult& gate : report.gates)
    gates.push(Json::object()
                   .set("name", gate.name)
                   .set("status", name_of(gate.status))
                   .set("detail", gate.detail)
                   .set("seconds", gate.seconds));
  return Json::object()
      .set("model", request.model.string())
      .set("passed", report.passed())
      .set("executed", report.executed())
      .set("skipped", report.count(GateStatus::skipped))
      .set("required", report.required)
      .set("gates", gates);
}

std::string as_text(const QaReport& report) {
  Table table;
  for (const GateResult& gate : report.gates)
    table.row({std::string(name_of(gate.status)), std::string(gate.name), gate.detail});
  std::string text = table.text(page_width(0));
  text += fmt::format("{}: {} passed, {} failed, {} skipped\n", report.passed() ? "passed" : "failed",
                      report.count(GateStatus::passed), report.count(GateStatus::failed),
                      report.count(GateStatus::skipped));
  if (report.executed() < report.required)
    text += fmt::format("{} checks ran, {} are required\n", report.executed(), report.required);
  return text;
}

int run_qa(const Arguments& arguments, Console& console) {
  const Interrupt interrupt;
  const SpooledInput data(arguments.text("data"), &interrupt);
  QaRequest request{.model = arguments.path("MODEL"),
                    .data = data.name(),
                    .skipped = arguments.list("skip"),
                    .require = arguments.integer("require", {.least = 0}),
                    .device = device_from(arguments, console.log())};
  if (arguments.given("min-tps")) request.min_tokens_per_second = arguments.number("min-tps", {.least = 0});
  const QaReport report = run_gates(request, console.progress(), &interrupt);
  if (console.json())
    console.print_json(as_json(request, report));
  else
    console.print_foreign(as_text(report));
  return report.passed() ? 0 : 1;
}

std::vector<std::string_view> gate_names() {
  std::vector<std::string_view> names;
  for (const Gate& gate : all_gates()) names.push_back(gate.name);
  return names;
}

}  // namespace

Command qa_command() {
  return {
      .name = "qa",
      .summary = "check that a model is complete, finite, and still produces its recorded output",
      .arguments = {model_argument()},
      .options =
          {{.name = "data",
            .value = "X",
            .help =
                "text, chats or shards to score; the check fails if bits per byte are worse than recorded"},
           {.name = "min-tps", .value = "F", .help = "minimum decoding speed, in tokens per second"},
           {.name = "skip", .help = "skip this check", .choices = gate_names(), .repeated = true},
           {.name = "require",
            .value = "N",
            .initial = "1",
            .help = "fail if fewer checks ran; skipped checks do not count"},
           device_option(),
           common::threads(),
           common::json(),
           common::quiet()},
      .examples = {"thimble qa runs/book", "thimble qa runs/book --data runs/book/data --require 9",
                   "thimble qa book.thimble --min-tps 100 --json"},
      .run = run_qa};
}

}  // namespace thimble
