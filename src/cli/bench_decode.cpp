#include "cli/bench_decode.h"

#include <fmt/format.h>

#include "base/interrupt.h"
#include "base/json.h"
#include "base/table.h"
#include "cli/bench.h"
#include "cli/console.h"
#include "cli/device.h"
#include "cli/parse.h"
#include "qa/card_ceilings.h"
#include "qa/read_bandwidth.h"

namespace thimble {

namespace {

constexpr std::int64_t kMostStreams = 1024;
constexpr double kBandwidthSeconds = 0.5;

// Every token reads all weights, so memory bounds them; streams share what is read.
struct Ceiling {
  double bytes_per_second, bytes_per_call, tokens_per_second;
};

double cached_bytes(const Model& model, double positions) {
  const ModelConfig& config = model.config();
  return 2 * positions *
         static_cast<double>(config.passes() * config.kv_width() * dtype_bytes(model.dtype()));
}

Ceiling ceiling_of(const Model& model, const Context& context, const SpeedRequest& request,
                   const Interrupt& interrupt) {
  const double positions = static_cast<double>(request.depth) + static_cast<double>(request.tokens) / 2;
  const auto streams = static_cast<double>(request.streams);
  const bool card = context.device() != Device::cpu;
  const StoredWeights* stored = card ? nullptr : model.stored_weights();  // a card's are expanded
  // Weights that stay as they are stored are read as such; what slots remember has the rows' dtype.
  const double bytes = stored
                           ? static_cast<double>(stored->bytes()) + cached_bytes(model, streams * positions)
                           : bytes_per_token(model.config(), model.dtype(), streams * positions);
  const auto whole = static_cast<std::int64_t>(bytes);
  const double bandwidth =
      card ? card_bandwidth(context, whole) : read_bandwidth(whole, kBandwidthSeconds, &interrupt);
  return {bandwidth, bytes, streams * bandwidth / bytes};
}

int run_bench_decode(const Arguments& arguments, Console& console) {
  ModelFile file = bench_model(arguments);
  const Context context(device_from(arguments, console.log()));
  const SpeedRequest request{.tokens = tokens_from(arguments, file.config.model),
                             .depth = depth_from(arguments, file.config.model),
                             .streams = arguments.integer("streams", {.least = 1, .most = kMostStreams}),
                             .repeats = arguments.integer("iterations", {.least = 1, .most = 100000})};
  Model model = model_for(file, context, dtype_from(arguments, context.device(), console.log()), request);
  const Interrupt interrupt;
  const Speed speed = decode_speed(model, request, console.progress(), &interrupt);
  const Ceiling ceiling = ceiling_of(model, context, request, interrupt);
  const double fraction = speed.mean() / ceiling.tokens_per_second;
  const Verdict verdict = verdict_of(arguments, speed.mean());
  if (console.json())
    console.print_json(
        as_json(speed)
            .set("passed", verdict.passed)
            .set("model", file.path.string())
            .set("architecture", file.architecture)
            .set("parameters", model.params().count())
            .set("device", device_name(context))
            .set("dtype", dtype_name(model.dtype()))
            .set("streams", request.streams)
            .set("bytes_per_token", ceiling.bytes_per_call / static_cast<double>(request.streams))
            .set("read_gigabytes_per_second", ceiling.bytes_per_second / 1e9)
            .set("ceiling_tokens_per_second", ceiling.tokens_per_second)
            .set("fraction_of_ceiling", fraction));
  else
    console.print(
        fmt::format("{}{} ({} parameters, {}); memory, read at {:.1f} GB/s, allows {:.0f}: {:.3f}\n",
                    as_text(speed), request.streams > 1 ? fmt::format(" in {} streams", request.streams) : "",
                    with_unit(static_cast<double>(model.params().count())), computed_in(model, context),
                    ceiling.bytes_per_second / 1e9, ceiling.tokens_per_second, fraction));
  return exit_code(verdict, console);
}

}  // namespace

Command bench_decode_command() {
  std::vector<Option> options = model_options();
  options.push_back({.name = "max-tokens", .value = "N", .initial = "128", .help = "tokens of each stream"});
  options.push_back(
      {.name = "depth", .value = "N", .initial = "0", .help = "tokens in the cache before them"});
  options.push_back({.name = "streams", .value = "N", .initial = "1", .help = "sequences decoded together"});
  options.push_back(device_option());
  options.push_back(common::dtype());
  return {
      .name = "bench decode",
      .summary = "how fast tokens are generated here, beside what the machine's memory allows",
      .arguments = {{.name = "MODEL",
                     .help = "run folder, checkpoint, artifact, GGUF or Hugging Face folder",
                     .count = Count::optional}},
      .options = with_bench_options(options, "5", "repeats, after a warm-up; mean and deviation are shown"),
      .examples = {"thimble bench decode runs/book --min-tps 100",
                   "thimble bench decode --preset llama --streams 8"},
      .run = run_bench_decode};
}

}  // namespace thimble
