#include "cli/compare.h"

#include "cli/console.h"
#include "cli/parse.h"
#include "report/compare.h"

namespace thimble {

namespace {

int run_compare(const Arguments& arguments, Console& console) {
  std::vector<RunData> runs;
  for (const std::string& run : arguments.list("RUN")) runs.push_back(read_run(run));
  const Comparison comparison = compare_runs(runs);
  for (const std::string& warning : comparison.warnings) console.log().warning("{}", warning);
  if (console.json())
    console.print_json(comparison_json(comparison));
  else
    console.print_foreign(comparison_text(comparison, page_width(0)));
  return 0;
}

}  // namespace

Command compare_command() {
  return {.name = "compare",
          .summary = "runs side by side: settings, results, means over seeds, a t-test",
          .arguments = {{.name = "RUN",
                         .help = "folders of runs; those that differ only in the seed are a group",
                         .count = Count::many}},
          .options = {common::json(), common::quiet()},
          .examples = {"thimble compare runs/a runs/b", "thimble compare runs/low-* runs/high-* --json"},
          .run = run_compare};
}

}  // namespace thimble
