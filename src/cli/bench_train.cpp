#include "cli/bench_train.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/table.h"
#include "cli/bench.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "cli/train_inputs.h"
#include "formats/model_file.h"
#include "model/compute_dtype.h"
#include "model/config_builder.h"
#include "model/config_toml.h"
#include "model/presets.h"
#include "train/step_bench.h"

namespace thimble {

namespace {

constexpr std::int64_t kCopiedBytes = std::int64_t{64} << 20;
constexpr double kCopySeconds = 1;

Config measured_config(const Arguments& arguments) {
  ConfigBuilder settings;
  if (arguments.given("MODEL")) {
    if (arguments.given("preset")) throw UsageError("expected MODEL or --preset, found both");
    const std::string& model = arguments.text("MODEL");
    settings.toml(to_toml(open_model(model).config), model);
    settings.set("micro_batch=0");  // that of its own batches
  } else {
    settings.preset(arguments.text("preset"));
  }
  if (arguments.given("config")) settings.file(arguments.path("config"));
  as_usage([&] { settings.set("batch_tokens=" + arguments.text("batch-tokens")); });
  settings.set("span_tokens=0");
  put_assignments(arguments, settings);
  return settings.resolve();
}

std::string_view phase_name(Phase phase) {
  return phase == Phase::forward ? "forward" : phase == Phase::backward ? "backward" : "recompute";
}

// One line an op: what limits it is products where it has any, else memory.
std::string profile_text(const StepBench& bench, double copied_per_second) {
  std::vector<std::pair<Profile::Key, OpTime>> times(bench.profile.times().begin(),
                                                     bench.profile.times().end());
  std::ranges::sort(times, std::greater{}, [](const auto& entry) { return entry.second.seconds; });
  double all = 0;
  for (const auto& [key, time] : times) all += time.seconds;
  Table table({"op", "phase", "calls", "share", "ms", "rate", "of its ceiling"});
  for (const auto& [key, time] : times) {
    const bool multiplies = time.work.flops > 0;
    const double rate = (multiplies ? time.work.flops : time.work.bytes) / time.seconds;
    const double ceiling = multiplies ? bench.peak_flops : copied_per_second;
    table.row({std::string(op_def(key.first).name), std::string(phase_name(key.second)),
               with_commas(time.calls), fmt::format("{:.1f} %", 100 * time.seconds / all),
               fmt::format("{:.1f}", 1e3 * time.seconds),
               fmt::format("{:.1f} {}", rate / 1e9, multiplies ? "GFLOP/s" : "GB/s"),
               fmt::format("{:.2f}", rate / ceiling)});
  }
  return table.text(page_width(0));
}

int run_bench_train(const Arguments& arguments, Console& console) {
  StepBenchRequest request{.config = measured_config(arguments),
                           .dtype = DType::f32,
                           .steps = arguments.integer("iterations", {.least = 1, .most = 1000}),
                           .profile = arguments.flag("profile")};
  const ComputeDType wanted = request.config.train.dtype;
  if (const std::string notice = dtype_notice(wanted, Device::cpu, cpu_features()); !notice.empty())
    console.log().info("{}", notice);
  request.dtype = compute_dtype(wanted, Device::cpu);
  const Interrupt interrupt;
  const StepBench bench = bench_steps(request, console.progress(), interrupt);
  const Verdict verdict = verdict_of(arguments, bench.tokens_per_second());
  if (console.json()) {
    Json samples = Json::array(), peaks = Json::array();
    for (const double seconds : bench.all_seconds) samples.push(bench.flops / seconds / 1e9);
    for (const double flops : bench.all_peaks) peaks.push(flops / 1e9);
    console.print_json(
        Json::object()
            .set("tokens_per_second", bench.tokens_per_second())
            .set("passed", verdict.passed)
            .set("dtype", std::string(dtype_name(request.dtype)))
            .set("cpu_level", std::string(cpu_level_name(cpu_level())))
            .set("step_tokens", bench.tokens)
            .set("step_seconds", bench.seconds)
            .set("gflops", bench.flops_per_second() / 1e9)
            .set("gemm_peak_gflops", bench.peak_flops / 1e9)
            .set("fraction_of_peak", bench.fraction_of_peak())
            .set("samples", samples)
            .set("peak_samples", peaks)
            .set("muon_seconds", request.config.train.uses_muon() ? bench.optimizer_seconds : 0.0)
            .set("optimizer_seconds", bench.optimizer_seconds));
    return exit_code(verdict, console);
  }
  if (request.profile) {
    const CopyBandwidth copy =
        measure_copy_bandwidth(kCopiedBytes, kCopySeconds, console.progress(), interrupt);
    console.print(profile_text(bench, copy.gigabytes_per_second * 1e9));
    console.print(fmt::format("copy {:.1f} GB/s (64 MiB), products {:.0f} GFLOP/s\n\n",
                              copy.gigabytes_per_second, bench.peak_flops / 1e9));
  }
  console.print(fmt::format(
      "{} tokens/s, {:.0f} GFLOP/s of {:.0f} that the products alone reach: {:.3f} ({}, {} tokens "
      "in {}, {} of it the optimizer)\n",
      with_unit(bench.tokens_per_second()), bench.flops_per_second() / 1e9, bench.peak_flops / 1e9,
      bench.fraction_of_peak(), dtype_name(request.dtype), with_commas(bench.tokens),
      in_seconds(bench.seconds), in_seconds(bench.optimizer_seconds)));
  return exit_code(verdict, console);
}

}  // namespace

Command bench_train_command() {
  const std::vector<std::string_view> presets = preset_names();
  return {.name = "bench train",
          .summary = "how fast a model trains here, beside what the machine's matrix products reach",
          .arguments = {{.name = "MODEL",
                         .help = "shape and optimizer of this model, instead of a preset's",
                         .count = Count::optional}},
          .options = with_bench_options(
              {{.name = "preset", .initial = "golf", .help = "model and optimizer", .choices = presets},
               {.name = "config", .value = "FILE", .help = "TOML file of settings, on top of the preset"},
               {.name = "set", .value = "KEY=VALUE", .help = "one setting, on top of both", .repeated = true},
               {.name = "batch-tokens", .value = "N", .initial = "65536", .help = "tokens of one step"},
               {.name = "profile", .help = "time of every op, and the part of its ceiling that it reaches"}},
              "3", "steps measured; the median counts"),
          .examples = {"thimble bench train --preset golf --profile",
                       "thimble bench train --preset llama --set dtype=f32 --batch-tokens 8192"},
          .run = run_bench_train};
}

}  // namespace thimble
