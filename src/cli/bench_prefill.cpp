#include "cli/bench_prefill.h"

#include <fmt/format.h>

#include "base/interrupt.h"
#include "base/json.h"
#include "base/table.h"
#include "cli/bench.h"
#include "cli/console.h"
#include "cli/device.h"
#include "cli/parse.h"
#include "ops/gemm_peak.h"
#include "qa/card_ceilings.h"
#include "train/step_bench.h"

namespace thimble {

namespace {

constexpr int kPeakRepeats = 3;

// What the model's own products reach with nothing around them.
double peak_flops(const Model& model, const Context& context, std::int64_t rows) {
  const std::vector<ProductShape> shapes = products_of(model.config());
  if (context.device() == Device::cuda)  // forward alone: a third of the work
    return flops_of_products(shapes, rows) / 3 /
           card_seconds_of_products(context, shapes, rows, model.dtype(), kPeakRepeats);
  return flops_of_products(shapes, rows) /
         cpu::seconds_of_products(context, shapes, rows, model.dtype(), kPeakRepeats);
}

int run_bench_prefill(const Arguments& arguments, Console& console) {
  ModelFile file = bench_model(arguments);
  const Context context(device_from(arguments, console.log()));
  const SpeedRequest request{.tokens = tokens_from(arguments, file.config.model),
                             .depth = depth_from(arguments, file.config.model),
                             .repeats = arguments.integer("iterations", {.least = 1, .most = 100000})};
  Model model = model_for(file, context, dtype_from(arguments, context.device(), console.log()), request);
  const Interrupt interrupt;
  const Speed speed = prefill_speed(model, request, console.progress(), &interrupt);
  const double flops = speed.mean() * prefill_flops(model.config(), request.tokens, request.depth) /
                       static_cast<double>(request.tokens);
  const double peak = peak_flops(model, context, request.tokens);
  const Verdict verdict = verdict_of(arguments, speed.mean());
  if (console.json())
    console.print_json(as_json(speed)
                           .set("passed", verdict.passed)
                           .set("model", file.path.string())
                           .set("architecture", file.architecture)
                           .set("parameters", model.params().count())
                           .set("device", device_name(context))
                           .set("dtype", dtype_name(model.dtype()))
                           .set("gflops", flops / 1e9)
                           .set("gemm_peak_gflops", peak / 1e9)
                           .set("fraction_of_peak", flops / peak));
  else
    console.print(fmt::format(
        "{} ({} parameters, {}); {:.0f} GFLOP/s of {:.0f} that the products alone reach: {:.3f}\n",
        as_text(speed), with_unit(static_cast<double>(model.params().count())), computed_in(model, context),
        flops / 1e9, peak / 1e9, flops / peak));
  return exit_code(verdict, console);
}

}  // namespace

Command bench_prefill_command() {
  std::vector<Option> options = model_options();
  options.push_back({.name = "max-tokens", .value = "N", .initial = "512", .help = "tokens of the prompt"});
  options.push_back({.name = "depth", .value = "N", .initial = "0", .help = "tokens in the cache before it"});
  options.push_back(device_option());
  options.push_back(common::dtype());
  return {
      .name = "bench prefill",
      .summary = "how fast a prompt is read here, beside what the machine's matrix products reach",
      .arguments = {{.name = "MODEL",
                     .help = "run folder, checkpoint, artifact, GGUF or Hugging Face folder",
                     .count = Count::optional}},
      .options = with_bench_options(options, "5", "repeats, after a warm-up; mean and deviation are shown"),
      .examples = {"thimble bench prefill runs/book",
                   "thimble bench prefill --preset llama --max-tokens 256"},
      .run = run_bench_prefill};
}

}  // namespace thimble
