#include "cli/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/parallel.h"
#include "base/signals.h"
#include "base/table.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/option.h"
#include "cli/parse.h"
#include "cli/train_inputs.h"
#include "config/builder.h"
#include "config/toml.h"
#include "data/sample/corpus.h"
#include "data/text_files.h"
#include "formats/model_file.h"
#include "model/model.h"
#include "ops/cpu/gemm.h"
#include "qa/speed.h"
#include "train/step_bench.h"

namespace thimble {

std::vector<Option> with_bench_options(std::vector<Option> own, std::string_view iterations,
                                       std::string_view iterations_help) {
  own.push_back(
      {.name = "iterations", .value = "N", .initial = std::string(iterations), .help = iterations_help});
  own.push_back(
      {.name = "min-tps", .value = "F", .initial = "0", .help = "fail below this many tokens per second"});
  for (const Option& option : {common::threads(), common::json(), common::quiet()}) own.push_back(option);
  return own;
}

Verdict verdict_of(const Arguments& arguments, double tokens_per_second) {
  const double least = arguments.number("min-tps", {.least = 0});
  return {least, tokens_per_second >= least};
}

int exit_code(const Verdict& verdict, Console& console) {
  if (verdict.passed) return 0;
  console.log().warning("slower than --min-tps {}", verdict.least);
  return 1;
}

std::vector<Option> model_options() {
  return {
      {.name = "preset", .help = "random weights of this shape instead of MODEL", .choices = preset_names()},
      {.name = "set", .value = "KEY=VALUE", .help = "one setting; overrides the preset", .repeated = true}};
}

ModelFile bench_model(const Arguments& arguments, const ProgressOutput& progress) {
  const bool model = arguments.given("MODEL"), preset = arguments.given("preset");
  if (model == preset)
    throw UsageError(fmt::format("expected MODEL or --preset, found {}", model ? "both" : "neither"));
  if (model) {
    if (arguments.given("set")) throw UsageError("--set cannot be combined with MODEL, only with --preset");
    return model_from(arguments, WeightsAs::stored, progress);  // as in `generate` and `serve`
  }
  if (arguments.given("adapter"))
    throw UsageError("--adapter cannot be combined with --preset, only with MODEL");
  ConfigBuilder settings;
  settings.preset(arguments.text("preset"));
  put_assignments(arguments, settings);
  ModelFile file;
  file.path = arguments.text("preset");
  file.format = "preset";
  file.config = settings.resolve();
  file.architecture = architecture_of(file.config.model);
  const ParamTable table(file.config.model);
  file.weights.resize(static_cast<std::size_t>(table.block_size()));
  initialize(table, static_cast<std::uint64_t>(file.config.train.seed), file.weights);
  return file;
}

std::int64_t depth_from(const Arguments& arguments, const ModelConfig& config) {
  return arguments.integer("depth", {.least = 0, .most = config.context - 1});
}

std::int64_t tokens_from(const Arguments& arguments, const ModelConfig& config) {
  const std::int64_t room = config.context - depth_from(arguments, config);
  if (!arguments.given("max-tokens")) return std::min(arguments.integer("max-tokens"), room);
  return arguments.integer("max-tokens", {.least = 1, .most = room});
}

Model model_for(ModelFile& file, const Context& context, DType dtype, const SpeedRequest& request) {
  ModelConfig& config = file.config.model;
  const std::int64_t needed = request.tokens + request.depth;
  const bool any_length = config.position != PositionKind::learned;  // learned positions have a row each
  if (any_length && needed < config.context) config.context = needed;
  if (context.device() != Device::cpu && !file.stored)  // avoids an extra f32 copy on the device
    file.stored = std::make_shared<StoredWeights>(stored_exactly(ParamTable(config), file.weights));
  return make_model(file, context, dtype);
}

std::string device_name(const Context& context) {
  return context.device() == Device::cpu ? "cpu" : context.runtime()->facts().name;
}

std::string computed_in(DType dtype, const Context& context) {
  return context.device() == Device::cpu ? std::string(dtype_name(dtype))
                                         : fmt::format("{} on {}", dtype_name(dtype), device_name(context));
}

Json as_json(const Speed& speed) {
  Json samples = Json::array();
  for (const double rate : speed.rates) samples.push(rate);
  return Json::object()
      .set("test", speed.name)
      .set("tokens_per_second", speed.mean())
      .set("cpu_level", std::string(cpu_level_name(cpu_level())))
      .set("stddev", speed.deviation())
      .set("samples", samples);
}

std::string as_text(const Speed& speed) {
  return fmt::format("{}: {:.1f} +- {:.1f} tokens/s", speed.name, speed.mean(), speed.deviation());
}

namespace {

// Left out if the ceiling was disturbed.
Json with_fraction(std::string_view name, std::optional<double> fraction, Json report) {
  if (fraction) report.set(std::string(name), *fraction);
  return report;
}

std::string fraction_text(std::optional<double> fraction) {
  return fraction ? fmt::format("{:.3f}", *fraction) : "not known, other programs disturbed the measurement";
}

constexpr int kPeakRepeats = 3;

// FLOP rate of the model's matrix products alone.
double peak_flops(const ModelConfig& config, const Context& context, std::int64_t rows, DType dtype) {
  const std::vector<ProductShape> shapes = products_of(config);
  if (context.device() == Device::cuda)  // forward only: a third of the work
    return flops_of_products(shapes, rows) / 3 /
           gpu_seconds_of_products(context, shapes, rows, dtype, kPeakRepeats);
  return flops_of_products(shapes, rows) /
         cpu::seconds_of_products(context, shapes, rows, dtype, kPeakRepeats);
}

constexpr std::int64_t kCopiedBytes = std::int64_t{64} << 20;
constexpr double kCopySeconds = 1;

Config measured_config(const Arguments& arguments) {
  ConfigBuilder settings;
  if (arguments.given("MODEL")) {
    if (arguments.given("preset")) throw UsageError("expected MODEL or --preset, found both");
    const std::string& model = arguments.text("MODEL");
    settings.toml(to_toml(open_model(model, WeightsAs::none).config), model);
    settings.set("micro_batch=0");  // the recorded value was chosen for another batch size
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

// One line per op. The ceiling is the FLOP rate of matrix products, or the memory bandwidth for an
// op without matrix products, which does not limit an op whose data is in the caches ("-").
std::string profile_text(const StepBench& bench, double copied_per_second) {
  std::vector<std::pair<Profile::Key, OpTime>> times(bench.profile.times().begin(),
                                                     bench.profile.times().end());
  std::ranges::sort(times, std::greater{}, [](const auto& entry) { return entry.second.seconds; });
  double all = 0;
  for (const auto& [key, time] : times) all += time.seconds;
  Table table({"op", "phase", "calls", "share", "ms", "rate", "of ceiling"});
  for (const auto& [key, time] : times) {
    const bool multiplies = time.work.flops > 0;
    const double rate = (multiplies ? time.work.flops : time.work.bytes) / time.seconds;
    const double ceiling = multiplies ? bench.peak_flops : copied_per_second;
    table.row({std::string(key.first), std::string(phase_name(key.second)), with_commas(time.calls),
               fmt::format("{:.1f} %", 100 * time.seconds / all), fmt::format("{:.1f}", 1e3 * time.seconds),
               fmt::format("{:.1f} {}", rate / 1e9, multiplies ? "GFLOP/s" : "GB/s"),
               ceiling >= rate ? fmt::format("{:.2f}", rate / ceiling) : "-"});
  }
  return table.text(page_width(0));
}

int run_bench_train(const Arguments& arguments, Console& console) {
  StepBenchRequest request{.config = measured_config(arguments),
                           .dtype = DType::f32,
                           .steps = arguments.integer("iterations", {.least = 1, .most = 1000}),
                           .profile = arguments.flag("profile")};
  const Context context(device_from(arguments, console.log()));
  const bool gpu = context.device() != Device::cpu;
  if (gpu && request.profile) throw UsageError("--profile is available on the CPU only");
  const ComputeDType wanted = request.config.train.dtype;
  if (const std::string notice = dtype_notice(wanted, context.device(), cpu_features()); !notice.empty())
    console.log().info("{}", notice);
  request.dtype = compute_dtype(wanted, context.device());
  request.device = context.runtime();
  request.gpu_peak_flops = [&](std::int64_t rows) {
    return peak_flops(request.config.model, context, rows, request.dtype);
  };
  const Interrupt interrupt;
  const StepBench bench = bench_steps(request, console.progress(), interrupt);
  const Verdict verdict = verdict_of(arguments, bench.tokens_per_second());
  const std::optional<double> fraction = fraction_of(bench.flops_per_second(), bench.peak_flops);
  if (console.json()) {
    Json samples = Json::array(), peaks = Json::array();
    for (const double seconds : bench.all_seconds) samples.push(bench.flops / seconds / 1e9);
    for (const double flops : bench.all_peaks) peaks.push(flops / 1e9);
    console.print_json(with_fraction(
        "fraction_of_peak", fraction,
        Json::object()
            .set("tokens_per_second", bench.tokens_per_second())
            .set("passed", verdict.passed)
            .set("device", device_name(context))
            .set("dtype", std::string(dtype_name(request.dtype)))
            .set("cpu_level", std::string(cpu_level_name(cpu_level())))
            .set("step_tokens", bench.tokens)
            .set("step_seconds", bench.seconds)
            .set("gflops", bench.flops_per_second() / 1e9)
            .set("gemm_peak_gflops", bench.peak_flops / 1e9)
            .set("samples", samples)
            .set("peak_samples", peaks)
            .set("muon_seconds", request.config.optimizer.uses_muon() ? bench.optimizer_seconds : 0.0)
            .set("optimizer_seconds", gpu ? Json() : Json(bench.optimizer_seconds))));
    return exit_code(verdict, console);
  }
  if (request.profile) {
    const CopyBandwidth copy =
        measure_copy_bandwidth(kCopiedBytes, kCopySeconds, console.progress(), interrupt);
    console.print(profile_text(bench, copy.gigabytes_per_second * 1e9));
    console.print(fmt::format("ceilings: copy {:.1f} GB/s (64 MiB), matrix products {:.0f} GFLOP/s\n\n",
                              copy.gigabytes_per_second, bench.peak_flops / 1e9));
  }
  console.print(
      fmt::format("{} tokens/s; {:.0f} GFLOP/s, matrix products alone {:.0f}: {} ({}, {} tokens "
                  "in {}{})\n",
                  with_unit(bench.tokens_per_second()), bench.flops_per_second() / 1e9,
                  bench.peak_flops / 1e9, fraction_text(fraction), computed_in(request.dtype, context),
                  with_commas(bench.tokens), in_seconds(bench.seconds),
                  gpu ? "" : fmt::format(", optimizer {}", in_seconds(bench.optimizer_seconds))));
  return exit_code(verdict, console);
}

}  // namespace

Command bench_train_command() {
  const std::vector<std::string_view> presets = preset_names();
  return {.name = "bench train",
          .summary = "measure training speed and the ceiling set by matrix products",
          .arguments = {{.name = "MODEL",
                         .help = "model whose shape and optimizer are used instead of a preset",
                         .count = Count::optional}},
          .options = with_bench_options(
              {{.name = "preset", .initial = "golf", .help = "shape and optimizer", .choices = presets},
               {.name = "config", .value = "FILE", .help = "TOML file of settings; overrides the preset"},
               {.name = "set", .value = "KEY=VALUE", .help = "one setting; overrides both", .repeated = true},
               {.name = "batch-tokens", .value = "N", .initial = "65536", .help = "tokens per step"},
               device_option(),
               {.name = "profile", .help = "print the time of every op as a fraction of its ceiling"}},
              "3", "steps to measure; the median is reported"),
          .examples = {"thimble bench train --preset golf --profile",
                       "thimble bench train --preset llama --set dtype=f32 --batch-tokens 8192"},
          .run = run_bench_train};
}

namespace {

SpeedRequest request_from(const Arguments& arguments, const ModelConfig& config) {
  return {.tokens = tokens_from(arguments, config),
          .depth = depth_from(arguments, config),
          .repeats = arguments.integer("iterations", {.least = 1, .most = 100000})};
}

// The options of `bench prefill` and `bench decode`; `own`: those of one of them.
std::vector<Option> speed_options(const std::string& tokens, std::string_view tokens_help,
                                  const std::vector<Option>& own = {}) {
  std::vector<Option> options = model_options();
  options.push_back({.name = "max-tokens", .value = "N", .initial = tokens, .help = tokens_help});
  options.push_back(
      {.name = "depth", .value = "N", .initial = "0", .help = "tokens already in the KV cache"});
  options.insert(options.end(), own.begin(), own.end());
  options.push_back(device_option());
  options.push_back(common::dtype());
  return with_bench_options(options, "5",
                            "repetitions after a warm-up; mean and standard deviation are reported");
}

// What `bench`, `bench prefill` and `bench decode` measure, and on what.
struct SpeedBench {
  const Console& console;
  ModelFile file;
  Context context;
  DType dtype;
  Interrupt interrupt;

  SpeedBench(const Arguments& arguments, const Console& output)
      : console(output),
        file(bench_model(arguments, output.progress())),
        context(device_from(arguments, output.log())),
        dtype(dtype_from(arguments, context.device(), output.log())) {}
};

// The result of `bench prefill` or `bench decode`.
struct Measured {
  Speed speed;
  Json json;
  std::string text;
};

// The fields that `bench prefill` and `bench decode` share.
Json as_json(const Speed& speed, const SpeedBench& bench, const Model& model) {
  return as_json(speed)
      .set("model", bench.file.path.string())
      .set("architecture", bench.file.architecture)
      .set("parameters", model.params().count())
      .set("device", device_name(bench.context))
      .set("dtype", dtype_name(model.dtype()));
}

int report(const Arguments& arguments, Measured measured, Console& console) {
  const Verdict verdict = verdict_of(arguments, measured.speed.mean());
  if (console.json())
    console.print_json(measured.json.set("passed", verdict.passed));
  else
    console.print(measured.text);
  return exit_code(verdict, console);
}

Measured measure_prefill(SpeedBench& bench, const SpeedRequest& request) {
  const Context& context = bench.context;
  Model model = model_for(bench.file, context, bench.dtype, request);
  Measured measured{.speed = prefill_speed(model, request, bench.console.progress(), &bench.interrupt),
                    .json = {},
                    .text = {}};
  const Speed& speed = measured.speed;
  const double flops = speed.mean() * prefill_flops(model, request.tokens, request.depth) /
                       static_cast<double>(request.tokens);
  const auto measure = [&] { return peak_flops(model.config(), context, request.tokens, model.dtype()); };
  const double peak = ceiling_above(flops, measure(), measure);
  const std::optional<double> fraction = fraction_of(flops, peak);
  measured.json = with_fraction(
      "fraction_of_peak", fraction,
      as_json(speed, bench, model).set("gflops", flops / 1e9).set("gemm_peak_gflops", peak / 1e9));
  measured.text =
      fmt::format("{} ({} parameters, {}); {:.0f} GFLOP/s, matrix products alone {:.0f}: {}\n",
                  as_text(speed), with_unit(static_cast<double>(model.params().count())),
                  computed_in(model.dtype(), context), flops / 1e9, peak / 1e9, fraction_text(fraction));
  return measured;
}

int run_bench_prefill(const Arguments& arguments, Console& console) {
  SpeedBench bench(arguments, console);
  return report(arguments, measure_prefill(bench, request_from(arguments, bench.file.config.model)), console);
}

}  // namespace

Command bench_prefill_command() {
  return {.name = "bench prefill",
          .summary = "measure prompt processing and the ceiling set by matrix products",
          .arguments = {model_argument(Count::optional)},
          .options = speed_options("512", "length of the prompt, in tokens"),
          .examples = {"thimble bench prefill runs/book",
                       "thimble bench prefill --preset llama --max-tokens 256"},
          .run = run_bench_prefill};
}

namespace {

constexpr std::int64_t kMostStreams = 1024;
constexpr double kBandwidthSeconds = 0.5;

// Decoding a token reads all weights, so memory bandwidth limits it; streams share each read.
struct Ceiling {
  double bytes_per_second, bytes_per_call, tokens_per_call;

  double tokens_per_byte() const { return tokens_per_call / bytes_per_call; }
  double tokens_per_second() const { return bytes_per_second * tokens_per_byte(); }
};

double cached_bytes(const Model& model, double positions) {
  const ModelConfig& config = model.config();
  return 2 * keys_per_token(config, positions, model.loop_on()) *
         static_cast<double>(config.kv_width() * dtype_bytes(model.dtype()));
}

Ceiling ceiling_of(const Model& model, const Context& context, const SpeedRequest& request,
                   const Interrupt& interrupt) {
  const double positions = static_cast<double>(request.depth) + static_cast<double>(request.tokens) / 2;
  const auto streams = static_cast<double>(request.streams);
  const bool gpu = context.device() != Device::cpu;
  const StoredWeights* stored = gpu ? nullptr : model.stored_weights();  // a GPU expands quantized weights
  // Quantized weights are read as stored; the KV cache has the dtype of the computation.
  const double bytes = stored ? static_cast<double>(stored->bytes() + stored->file_bytes()) +
                                    cached_bytes(model, streams * positions)
                              : bytes_per_token(model, streams * positions);
  const auto bytes_read = static_cast<std::int64_t>(bytes);
  const double bandwidth =
      gpu ? gpu_bandwidth(context, bytes_read) : read_bandwidth(bytes_read, kBandwidthSeconds, &interrupt);
  return {bandwidth, bytes, streams};
}

Measured measure_decode(SpeedBench& bench, const SpeedRequest& request) {
  const Context& context = bench.context;
  Model model = model_for(bench.file, context, bench.dtype, request);
  Measured measured{.speed = decode_speed(model, request, bench.console.progress(), &bench.interrupt),
                    .json = {},
                    .text = {}};
  const Speed& speed = measured.speed;
  Ceiling ceiling = ceiling_of(model, context, request, bench.interrupt);
  ceiling.bytes_per_second =
      ceiling_above(speed.mean() / ceiling.tokens_per_byte(), ceiling.bytes_per_second,
                    [&] { return ceiling_of(model, context, request, bench.interrupt).bytes_per_second; });
  const std::optional<double> fraction = fraction_of(speed.mean(), ceiling.tokens_per_second());
  measured.json =
      with_fraction("fraction_of_ceiling", fraction,
                    as_json(speed, bench, model)
                        .set("streams", request.streams)
                        .set("first_token_seconds", speed.first_token_seconds)
                        .set("bytes_per_token", ceiling.bytes_per_call / static_cast<double>(request.streams))
                        .set("read_gigabytes_per_second", ceiling.bytes_per_second / 1e9)
                        .set("ceiling_tokens_per_second", ceiling.tokens_per_second()));
  measured.text =
      fmt::format("{}{} ({} parameters, {}); memory ceiling at {:.1f} GB/s {:.0f} tokens/s: {}\n",
                  as_text(speed), request.streams > 1 ? fmt::format(" in {} streams", request.streams) : "",
                  with_unit(static_cast<double>(model.params().count())), computed_in(model.dtype(), context),
                  ceiling.bytes_per_second / 1e9, ceiling.tokens_per_second(), fraction_text(fraction));
  return measured;
}

int run_bench_decode(const Arguments& arguments, Console& console) {
  SpeedBench bench(arguments, console);
  SpeedRequest request = request_from(arguments, bench.file.config.model);
  request.streams = arguments.integer("streams", {.least = 1, .most = kMostStreams});
  return report(arguments, measure_decode(bench, request), console);
}

constexpr std::int64_t kPromptTokens = 512, kGeneratedTokens = 128;  // of `bench`, as llama-bench's

int run_bench(const Arguments& arguments, Console& console) {
  SpeedBench bench(arguments, console);
  const std::int64_t longest = bench.file.config.model.context;
  const SpeedRequest request{.tokens = std::min(kPromptTokens, longest),
                             .repeats = arguments.integer("iterations", {.least = 1, .most = 100000})};
  SpeedRequest decoding = request;
  decoding.tokens = std::min(kGeneratedTokens, longest);
  Measured prefill = measure_prefill(bench, request);
  if (!console.json()) console.print(prefill.text);
  Measured decode = measure_decode(bench, decoding);
  if (console.json())
    console.print_json(
        Json::object().set("prefill", std::move(prefill.json)).set("decode", std::move(decode.json)));
  else
    console.print(decode.text);
  return kExitDone;
}

}  // namespace

Command bench_decode_command() {
  const Option streams = {
      .name = "streams", .value = "N", .initial = "1", .help = "sequences decoded in one batch"};
  return {.name = "bench decode",
          .summary = "measure decoding and the ceiling set by memory bandwidth",
          .arguments = {model_argument(Count::optional)},
          .options = speed_options("128", "tokens to generate per stream", {streams}),
          .examples = {"thimble bench decode runs/book --min-tps 100",
                       "thimble bench decode --preset llama --streams 8"},
          .run = run_bench_decode};
}

Command bench_command() {
  std::vector<Option> options = model_options();
  options.push_back({.name = "iterations",
                     .value = "N",
                     .initial = "5",
                     .help = "repetitions after a warm-up; mean and standard deviation are reported"});
  for (const Option& option :
       {device_option(), common::dtype(), common::threads(), common::json(), common::quiet()})
    options.push_back(option);
  return {.name = "bench",
          .summary = "measure prompt processing and decoding of a model",
          .arguments = {model_argument(Count::optional)},
          .options = options,
          .notes =
              "Measures a prompt of 512 tokens and 128 generated tokens, or as many as the context "
              "has. The subcommands train, prefill, decode and tokenize measure one thing with more "
              "options: thimble bench decode --help.",
          .examples = {"thimble bench runs/book", "thimble bench --preset llama --device auto"},
          .run = run_bench};
}

namespace {

constexpr std::uint64_t kSampleBytes = 4 << 20, kMostBytes = 256 << 20;
constexpr std::size_t kLearnedBytes = 1 << 20;

std::string text_from(const Arguments& arguments) {
  std::string text;
  if (arguments.given("data")) {
    text = read_text_file(arguments.text("data"), kMostBytes);
    check(!text.empty(), "{} is empty", arguments.text("data"));
    return text;
  }
  sample::write_corpus({.kind = sample::CorpusKind::tales, .bytes = kSampleBytes},
                       [&](std::string_view more) { text += more; });
  return text;
}

// The tokenizer of MODEL, a tokenizer file, or one trained on the text.
std::unique_ptr<Tokenizer> tokenizer_from(const Arguments& arguments, const std::string& text,
                                          Console& console, const Interrupt& interrupt) {
  if (!arguments.given("MODEL")) {
    ConfigBuilder settings;
    settings.preset(arguments.text("preset"));
    const auto vocab_size = static_cast<TokenId>(settings.resolve().model.vocab_size);
    return tokenizer_trained_on(text.substr(0, kLearnedBytes), vocab_size, console.progress(), interrupt);
  }
  if (arguments.given("preset")) throw UsageError("expected MODEL or --preset, found both");
  const std::filesystem::path path = arguments.path("MODEL");
  const std::string extension = path.extension().string();
  if (path == "bytes" || path == "bytes:chat" || extension == ".json" || extension == ".model")
    return load_tokenizer(path);
  auto tokenizer = open_tokenizer(open_model(path, WeightsAs::none));
  check(tokenizer != nullptr, "{} has no tokenizer", path.string());
  return tokenizer;
}

int run_bench_tokenize(const Arguments& arguments, Console& console) {
  const Interrupt interrupt;
  std::string text = text_from(arguments);
  const auto tokenizer = tokenizer_from(arguments, text, console, interrupt);
  if (arguments.given("max-tokens")) {
    const std::vector<TokenId> ids = tokenizer->encode(text);
    const auto most = static_cast<std::size_t>(arguments.integer("max-tokens", {.least = 1}));
    text = tokenizer->decode(std::span(ids).first(std::min(ids.size(), most)));
  }
  const TokenizerSpeed result =
      tokenizer_speed(*tokenizer, text, arguments.integer("iterations", {.least = 1, .most = 100000}),
                      console.progress(), &interrupt);
  const Verdict verdict = verdict_of(arguments, result.speed.mean());
  const double bytes_per_token = static_cast<double>(result.bytes) / static_cast<double>(result.tokens);
  if (console.json())
    console.print_json(as_json(result.speed)
                           .set("passed", verdict.passed)
                           .set("kind", name_of(tokenizer->kind()))
                           .set("vocab_size", tokenizer->vocab_size())
                           .set("tokens", result.tokens)
                           .set("bytes", result.bytes)
                           .set("bytes_per_token", bytes_per_token)
                           .set("megabytes_per_second", result.bytes_per_second() / 1e6)
                           .set("threads", 1)
                           .set("usable_threads", max_threads()));
  else
    console.print(
        fmt::format("{}, {:.2f} MB/s on one of {} threads ({}, {} tokens, {:.2f} bytes per token)\n",
                    as_text(result.speed), result.bytes_per_second() / 1e6, max_threads(),
                    name_of(tokenizer->kind()), tokenizer->vocab_size(), bytes_per_token));
  return exit_code(verdict, console);
}

}  // namespace

Command bench_tokenize_command() {
  return {.name = "bench tokenize",
          .summary = "measure tokenization on one thread",
          .arguments = {{.name = "MODEL",
                         .help = "a model, a tokenizer file, or bytes",
                         .count = Count::optional}},
          .options = with_bench_options(
              {{.name = "preset",
                .initial = "golf",
                .help = "without MODEL: train a BPE with the vocabulary size of this preset on the text",
                .choices = preset_names()},
               {.name = "data",
                .value = "FILE",
                .help = "text to encode",
                .shown_default = "4 MiB of the built-in tales"},
               {.name = "max-tokens", .value = "N", .help = "use the first N tokens of the text"}},
              "5", "repetitions after a warm-up; mean and standard deviation are reported"),
          .examples = {"thimble bench tokenize runs/book",
                       "thimble bench tokenize tokenizer.json --data book.txt"},
          .run = run_bench_tokenize};
}

}  // namespace thimble
