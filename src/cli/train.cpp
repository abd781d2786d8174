// thimble train: dashboard, TensorBoard and report; --dry-run; new and resumed runs.

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file_ops.h"
#include "base/files.h"
#include "base/json.h"
#include "base/signals.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/console.h"
#include "cli/option.h"
#include "cli/parse.h"
#include "cli/train_inputs.h"
#include "config/builder.h"
#include "config/toml.h"
#include "data/data_folder.h"
#include "dist/communicator.h"
#include "dist/plugins.h"
#include "model/depth.h"
#include "report/dashboard.h"
#include "report/report.h"
#include "report/tensorboard.h"
#include "train/checkpoint.h"
#include "train/initial_weights.h"
#include "train/optimizer_choice.h"
#include "train/reporter.h"
#include "train/run_cost.h"
#include "train/run_folder.h"
#include "train/run_plan.h"
#include "train/train.h"

namespace thimble {

namespace {

class TrainWatch {
 public:
  // Starts the dashboard, so that a port in use fails before any work is done.
  TrainWatch(const Arguments& arguments, std::filesystem::path run, Console& console);
  ~TrainWatch();
  TrainWatch(const TrainWatch&) = delete;
  TrainWatch& operator=(const TrainWatch&) = delete;

  void attach(TrainRequest& request);
  // Call this when training has ended, for any reason. Writes the report and returns its path. If
  // that fails, logs a warning and returns an empty path, because the model is already saved.
  std::filesystem::path finish();

 private:
  const Arguments& arguments_;
  std::filesystem::path run_;
  Console& console_;
  PosixFileOps disk_;
  std::unique_ptr<Dashboard> dashboard_;
  std::unique_ptr<TrainObserver> tensorboard_;
  Observers observers_;
};

constexpr std::int64_t kMostSamples = 16;
constexpr std::int64_t kMostMemorization = 1'000'000;  // tokens

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

TrainWatch::TrainWatch(const Arguments& arguments, std::filesystem::path run, Console& console)
    : arguments_(arguments), run_(std::move(run)), console_(console) {
  if (!arguments.given("dashboard")) return;
  dashboard_ = std::make_unique<Dashboard>(
      run_, static_cast<int>(arguments.integer("dashboard", {.least = 0, .most = 65535})));
  console_.tell(fmt::format("dashboard: {}", dashboard_->address()));
}

TrainWatch::~TrainWatch() = default;

void TrainWatch::attach(TrainRequest& request) {
  request.samples = arguments_.integer("samples", {.least = 0, .most = kMostSamples});
  request.memorization_tokens = arguments_.integer("memorization", {.least = 0, .most = kMostMemorization});
  observers_.add(console_.observer());
  if (arguments_.flag("tensorboard")) {
    tensorboard_ =
        std::make_unique<TensorBoardWriter>(disk_, run_, request.config.optimizer, seconds_since_1970);
    observers_.add(tensorboard_.get());
  }
  request.observer = &observers_;
}

std::filesystem::path TrainWatch::finish() {
  std::filesystem::path report;
  try {
    report = write_report(disk_, run_);
  } catch (const std::exception& error) {  // the trained model is saved already
    console_.log().warning("cannot write the report: {}", error.what());
  }
  if (dashboard_) dashboard_->end();
  return report;
}

// The output of `train --dry-run`: the resolved settings and their cost.
struct DryRun {
  const ConfigBuilder& settings;  // the origin of each key
  Config config;                  // resolved
  Summary summary;
  std::vector<std::string> derivations;  // of --depth
  Device device = Device::cpu;           // whose memory is planned
  std::int64_t available_bytes = 0;      // of that device; 0: unknown
};

std::string origin_text(const ConfigBuilder& settings, const Key& key, bool changed) {
  using Layer = ConfigBuilder::Layer;
  if (changed) return "derived";
  switch (settings.origin(key.name)) {
    case Layer::initial:
      return "default";
    case Layer::preset:
      return fmt::format("preset {}", settings.preset_name());
    case Layer::derived:
      return "derived";
    case Layer::file:
      return "config file";
    case Layer::command:
      return "command line";
  }
  return "";
}

std::string settings_text(const DryRun& run) {
  Table table({"setting", "value", "origin"});
  for (const Key& key : all_keys()) {
    const KeyValue value = key.get(run.config);
    const bool changed = value != key.get(run.settings.current());
    table.row({std::string(key.name), value_text(value), origin_text(run.settings, key, changed)});
  }
  return table.text(page_width(0));
}

std::string groups_text(const DryRun& run) {
  const OptimizerConfig& optimizer = run.config.optimizer;
  Table table({"group", "parameters", "optimizer", "rate"});
  for (int i = 0; i < kParamGroups; ++i) {
    const auto group = static_cast<ParamGroup>(i);
    const std::int64_t count = run.summary.by_group[static_cast<std::size_t>(i)];
    if (count == 0) continue;
    table.row({std::string(group_name(group)), with_commas(count),
               joined(run.summary.rules_by_group[static_cast<std::size_t>(i)], " and "),
               fmt::format("{}", optimizer.rate(group))});
  }
  table.row(
      {"total", with_commas(run.summary.parameters), fmt::format("{} tensors", run.summary.tensors), ""});
  return table.text(page_width(0));
}

std::string costs_text(const DryRun& run) {
  const Summary& s = run.summary;
  Table table;
  table.row({"memory in total", in_bytes(static_cast<double>(s.total_bytes()))});
  table.row({"parameters", with_commas(s.parameters)});
  table.row({"FLOPs per token", fmt::format("{} forward, {} training", with_unit(s.forward_flops_per_token),
                                            with_unit(s.training_flops_per_token))});
  std::string tokens = fmt::format("{} per step", with_commas(s.tokens_per_step));
  if (run.config.train.epochs > 0) tokens += fmt::format(", {} epochs", run.config.train.epochs);
  if (s.training_tokens > 0) tokens += fmt::format(", at most {} in total", with_unit(s.training_tokens));
  table.row({"tokens", tokens});
  table.row(
      {"micro-batch", fmt::format("{} rows of {} tokens", s.micro_batch_rows, run.config.model.context)});
  return table.text(page_width(0));
}

std::string as_text(const DryRun& run) {
  std::string text;
  for (const std::string& line : run.derivations) text += line + "\n";
  if (!text.empty()) text += "\n";
  text += costs_text(run);
  if (run.device == Device::cuda)
    text += fmt::format("free GPU memory: {}\n", in_bytes(static_cast<double>(run.available_bytes)));
  return text + "\n" + groups_text(run) + "\n" + memory_text(run.summary, page_width(0)) + "\n" +
         settings_text(run);
}

Json as_json(const DryRun& run) {
  const Summary& s = run.summary;
  Json parameters = Json::object().set("total", s.parameters), lines = Json::array();
  for (int i = 0; i < kParamGroups; ++i)
    parameters.set(std::string(group_name(static_cast<ParamGroup>(i))),
                   s.by_group[static_cast<std::size_t>(i)]);
  for (const std::string& line : run.derivations) lines.push(line);
  Json report = Json::object();
  report.set("status", "dry_run");
  report.set("preset", run.settings.preset_name());
  report.set("config", to_json(run.config));
  report.set("derivations", lines);
  report.set("parameters", parameters);
  report.set("tensors", s.tensors);
  report.set("flops_per_token", Json::object()
                                    .set("forward", std::llround(s.forward_flops_per_token))
                                    .set("training", std::llround(s.training_flops_per_token)));
  report.set("tokens_per_step", s.tokens_per_step);
  report.set("memory_bytes", Json::object()
                                 .set("base", s.base_bytes)
                                 .set("weights", s.weight_bytes)
                                 .set("gradients", s.gradient_bytes)
                                 .set("optimizer", s.optimizer_bytes)
                                 .set("update", s.update_bytes)
                                 .set("activations", s.plan.arena_bytes)
                                 .set("validation", s.validation_bytes)
                                 .set("process", s.process_bytes)
                                 .set("total", s.total_bytes())
                                 .set("available", run.available_bytes));
  report.set("device", run.device == Device::cuda ? "cuda" : "cpu");
  return report;
}

// The command that continues a run which was stopped or interrupted, with the options that a run
// does not store; otherwise empty.
std::string command_to_continue(const TrainResult& result, const std::filesystem::path& run,
                                const Arguments& arguments) {
  if (result.status != RunStatus::interrupted && result.status != RunStatus::stopped) return "";
  std::string command = resume_command(run);
  for (const std::string_view name : {"device", "threads"})
    if (arguments.given(name)) command += fmt::format(" --{} {}", name, arguments.text(name));
  return command;
}

Json as_json(const TrainResult& result, const std::filesystem::path& report, const std::string& command,
             const ExpectedLoss& expected) {
  Json json = Json::object()
                  .set("status", std::string(name_of(result.status)))
                  .set("steps", result.steps)
                  .set("tokens", result.tokens);
  json.set("epochs", result.epochs).set("train_loss", result.train_loss);
  if (result.validated) {
    json.set("val_loss", result.val_loss);
    if (result.val_bpb > 0) json.set("val_bpb", result.val_bpb);
  }
  if (expected.bits_per_byte > 0)
    json.set("expected_val_bpb", Json::object()
                                     .set("mean", expected.bits_per_byte)
                                     .set("low", expected.low)
                                     .set("high", expected.high));
  json.set("weights", result.weights).set("best_step", result.best_step);
  if (result.best_step >= 0) json.set("best_val_loss", result.best_val_loss);
  json.set("seconds", result.seconds).set("tokens_per_second", result.tokens_per_second);
  json.set("checkpoint", result.checkpoint.string());
  if (!report.empty()) json.set("report", report.string());
  if (!command.empty()) json.set("continue", command);
  if (result.diagnosis) json.set("diagnosis", result.diagnosis->to_json());
  if (result.memorization) json.set("memorization", result.memorization->to_json());
  return json;
}

// One line that describes the result.
std::string as_line(const TrainResult& result) {
  std::string line = fmt::format("{} at step {}", name_of(result.status), result.steps);
  if (result.seconds > 0) line += fmt::format(": train {:.4f}", result.train_loss);
  if (result.validated) line += fmt::format(", val {:.4f} nats", result.val_loss);
  if (result.val_bpb > 0) line += fmt::format(", {:.4f} bits per byte", result.val_bpb);
  if (result.weights != "raw") line += fmt::format(" ({} of the weights)", result.weights);
  if (result.best_step >= 0 && result.best_step != result.steps)
    line += fmt::format(", best {:.4f} at step {}", result.best_val_loss, result.best_step);
  if (result.seconds > 0)
    line +=
        fmt::format(", {} at {} tokens/s", in_seconds(result.seconds), with_unit(result.tokens_per_second));
  return line;
}

void print_result(const TrainResult& result, const std::filesystem::path& report, const std::string& command,
                  const ExpectedLoss& expected, Console& console) {
  if (console.json()) return console.print_json(as_json(result, report, command, expected));
  console.print(as_line(result) + "\n");
  if (expected.bits_per_byte > 0 && result.val_bpb > 0 && is_finished(result.status))
    console.print(fmt::format("expected {:.2f} bits per byte ({:.2f} to {:.2f})\n", expected.bits_per_byte,
                              expected.low, expected.high));
  if (!result.checkpoint.empty()) console.print(result.checkpoint.string() + "\n");
  if (!command.empty()) console.print(fmt::format("continue with:\n  {}\n", command));
  if (result.diagnosis) console.print(result.diagnosis->text());
  if (result.memorization) console.print(result.memorization->line() + "\n");
  if (!report.empty()) console.log().info("report: {}", report.string());
}

// If the preset has packing settings, prints the `thimble pack` command to run next.
void print_next(const TrainRequest& request, const TrainResult& result, Console& console) {
  const PackConfig& pack = request.config.pack;
  if (console.json() || !is_finished(result.status) || pack.bits == 0) return;
  const std::string run = (request.run / "").parent_path().string();  // without a trailing slash
  const std::filesystem::path data = held_out_data(request.run);
  std::string settings = fmt::format("{} bits", pack.bits);
  if (pack.prune > 0) settings += fmt::format(", {:g} % pruned", 100 * pack.prune);
  if (pack.stride > 0) settings += fmt::format(", bits per byte at stride {}", pack.stride);
  const std::string measured = result.validated ? fmt::format(" --data {}", shell_word(data.string())) : "";
  console.print(fmt::format("next step ({}):\n  thimble pack {}{} -o {}\n", settings, shell_word(run),
                            measured, shell_word(run + ".thimble")));
}

// Trains to the end. If the machine turns out to be slower than most_seconds allows, the run goes
// on with fewer steps, as with --resume --steps.
TrainResult train_in_time(TrainRequest request, Console& console, const Interrupt& interrupt,
                          const SaveSignal& save_now) {
  const double started = seconds_now(), most = request.most_seconds;
  for (;;) {
    TrainResult result = train(request, console.log(), console.progress(), interrupt, &save_now);
    if (result.steps_in_time == 0) return result;
    console.log().warning(
        "the machine is slower than when its speed was measured: the run ends after {} steps instead of {}, "
        "to end in time",
        with_commas(result.steps_in_time), with_commas(request.config.train.steps));
    request.config.train.steps = result.steps_in_time;
    request.most_seconds = std::max(most - (seconds_now() - started), 1.0);
    request.resume = true;
    request.source_was_named = request.force = false;
    request.initial_weights = nullptr;
  }
}

int run_and_print(TrainRequest request, const ExpectedLoss& expected, const Arguments& arguments,
                  Console& console, const Interrupt& interrupt, const SaveSignal& save_now) {
  std::optional<TrainWatch> watch;  // on rank 0
  on_all_ranks(*request.ranks, "starting the dashboard", [&] {
    if (!request.ranks->first()) return;
    watch.emplace(arguments, request.run, console);
    watch->attach(request);
  });
  const TrainResult result = train_in_time(request, console, interrupt, save_now);
  if (!watch) return 0;
  print_result(result, watch->finish(), command_to_continue(result, request.run, arguments), expected,
               console);
  print_next(request, result, console);
  return exit_code(result);
}

// --resume takes a run or one of its checkpoints.
struct ToResume {
  std::filesystem::path run, checkpoint;  // checkpoint: empty, if the run was given

  explicit ToResume(const std::filesystem::path& given) : run(given) {
    const Hint hint{"pass a run folder, or RUN/checkpoints/step-N.safetensors"};
    check(std::filesystem::exists(given), hint, "there is no run {}", given.string());
    if (std::filesystem::is_directory(given)) return;
    checkpoint = given;
    run = RunFolder::run_of(given);
    check(!run.empty(), hint, "{} is not a checkpoint in a run folder", given.string());
  }
};

TrainRequest resume_request(const Arguments& arguments, const NamedData& named, Console& console,
                            const std::shared_ptr<Communicator>& ranks) {
  for (std::string_view name :
       {"preset", "config", "depth", "output", "tokenizer", "val-fraction", "order", "chat", "documents",
        "text-field", "assistant", "skip-long", "init", "optimizer", "minutes", "dry-run"})
    if (arguments.given(name))
      throw UsageError(
          fmt::format("--{} cannot be combined with --resume", name),
          Hint{"a run keeps its model and data; --set and options can change training settings"});
  const auto [run, checkpoint] = ToResume(arguments.path("resume"));
  PosixFileOps disk;
  CheckpointHead head = read_resume_head(RunFolder(disk, run), checkpoint, arguments.flag("force"));
  constexpr std::uint64_t kMaxSettingsBytes = 1 << 20;
  const std::filesystem::path settings = run / "data.json";
  DataSettings source = DataSettings::from_json(read_file(settings, kMaxSettingsBytes), settings.string());
  if (arguments.given("data")) source.data = std::filesystem::absolute(named.data.name());
  if (arguments.given("val-data")) source.val_data = std::filesystem::absolute(named.val_data.name());
  const auto device = device_from(arguments, console.log(), ranks->local_rank());
  std::optional<FrozenModel> base;
  if (head.config.lora)
    base = frozen(open_base(head.base, run.string(), console.progress()), device->device(),
                  compute_dtype(head.config.train.dtype, device->device()));
  return {.config = changed_by(arguments, head.config),
          .tokenizer = std::move(head.tokenizer),
          .source = source,
          .source_was_named = arguments.given("data") || arguments.given("val-data"),
          .run = run,
          .device = device,
          .ranks = ranks,
          .base = std::move(base),
          .resume = true,
          .checkpoint = checkpoint,
          .force = arguments.flag("force"),
          .stop_after = arguments.integer("stop-after", {.least = 0})};
}

int resume(const Arguments& arguments, Console& console, const std::shared_ptr<Communicator>& ranks) {
  const Interrupt interrupt;
  const SaveSignal save_now;
  TrainRequest request;
  std::optional<NamedData> named;  // until training ends
  on_all_ranks(*ranks, "reading the run", [&] {
    request = resume_request(arguments, named.emplace(arguments, &interrupt), console, ranks);
  });
  request.gpus = join_gpus(*ranks, request.device);
  return run_and_print(std::move(request), {}, arguments, console, interrupt, save_now);
}

int dry_run(const ConfigBuilder& settings, const std::vector<std::string>& derivations,
            const StoredWeights* base, const DeviceRuntime& runtime, Console& console) {
  Config config = settings.resolve();
  const Device device = runtime.device();
  const std::int64_t available = available_memory(runtime);
  try {
    config = with_micro_batch(config, available, device, base);
  } catch (const Error& error) {  // print the plan even if this machine lacks the memory
    console.log().warning("{}", error.what());
    config = with_micro_batch(config, 0, device, base);
  }
  const DryRun run{settings, config, summarize(config, device, base), derivations, device, available};
  if (console.json())
    console.print_json(as_json(run));
  else
    console.print(as_text(run));
  return 0;
}

// The embedding needs a row for every token. That of an --init model may have more, and one of
// --vocab-size rows if the text yields fewer tokens.
void set_vocabulary(std::int64_t tokens, bool of_init, bool from_vocab_size, ConfigBuilder& settings) {
  const std::int64_t rows = settings.current().model.vocab_size;
  if (of_init) {
    check(tokens <= rows, Hint{"remove --tokenizer: the model has one"},
          "the tokenizer has {} tokens, but the model's embedding has only {} rows", tokens, rows);
    return;
  }
  check(!settings.given("vocab_size") || rows == tokens || (from_vocab_size && rows > tokens),
        Hint{"remove vocab_size, because the tokenizer determines it, or learn one with --tokenizer bpe:N"},
        "vocab_size is {}, but the tokenizer has {} tokens", rows, tokens);
  settings.derive("vocab_size", tokens);
}

// The settings and initial model of a new run; data and tokenizer follow.
struct Start {
  ConfigBuilder settings;
  std::vector<std::string> derivations;
  std::optional<ModelFile> init;  // of a dry run: without its weights
  Planned planned = Planned::nothing;
  std::optional<RunPlanner> planner;  // unless nothing is planned

  Start(const Arguments& arguments, const ProgressOutput& progress) : settings(settings_from(arguments)) {
    if (arguments.given("depth") && arguments.given("init"))
      throw UsageError("--depth and --init both determine the model", Hint{"remove one of them"});
    if (arguments.given("depth") && arguments.given("optimizer"))
      throw UsageError("--depth and --optimizer both determine the learning rates",
                       Hint{"remove one of them; --depth scales the rates of the preset"});
    if (arguments.given("depth"))
      derivations = apply_depth(settings, arguments.integer("depth", {.least = 1, .most = kMaxDepth}));
    const bool adapts = static_cast<bool>(settings.current().lora);
    if (adapts && !arguments.given("init"))
      throw UsageError("lora_rank trains adapters for a model, and none is named",
                       Hint{"name it with --init MODEL"});
    if (!arguments.given("init")) return;
    const WeightsAs as = adapts                      ? WeightsAs::stored
                         : arguments.flag("dry-run") ? WeightsAs::none
                                                     : WeightsAs::floats;
    init = open_model(arguments.path("init"), as, progress);
    check(!adapts || !init->adapters, Hint{"merge them first with `thimble merge`"},
          "{} has adapters already", init->path.string());
    take_model_settings(*init, arguments.given("preset"), settings);
  }
  // Call it when the vocabulary is known. Returns a sentence about the optimizer, or "".
  std::string choose_optimizer(const Arguments& arguments) {
    if (arguments.given("depth")) return "";  // which scales the preset's rates
    std::string note;
    const std::string name = arguments.given("optimizer") ? arguments.text("optimizer") : "";
    as_usage(
        [&] { note = thimble::choose_optimizer({.name = name, .fine_tunes = init.has_value()}, settings); });
    return note;
  }
  // Call it when the data are known. Chats have a preset of their own.
  void begin_plan(const Arguments& arguments, const DataSettings& data, Console& console,
                  const Interrupt& interrupt) {
    const Planned what = planned_by(arguments, settings);
    if (what == Planned::nothing) return;
    if (what == Planned::everything && data.kind == DataKind::chat)
      settings = settings_from(arguments, "chat");
    planned = what;
    planner.emplace(data, minutes_from(arguments), device_from(arguments, console.log()), console.progress(),
                    interrupt);
  }
  // The tokenizer to train for this data.
  std::optional<TokenizerSpec> choose_tokenizer(const Arguments& arguments, const DataSettings& data) const {
    if (planned != Planned::everything || arguments.given("tokenizer") || is_data_folder(data.data))
      return spec_from(arguments, settings, data);
    if (settings.given("vocab_size"))
      return TokenizerSpec{TokenizerKind::bpe, static_cast<TokenId>(settings.current().model.vocab_size)};
    return planner->tokenizer();
  }
  // Call it last. `tokenizer` is null if it is not trained yet.
  void finish_plan(const std::shared_ptr<const Tokenizer>& tokenizer, Console& console) {
    if (!planner) return;
    planner->plan(planned == Planned::everything, tokenizer, settings);
    console.log().info("{}", planner->table());
  }
  std::string preset() const { return settings.preset_name().empty() ? "run" : settings.preset_name(); }
  void warn(const Log& log) const {
    for (const std::string& line : idle_settings(settings)) log.warning("{}", line);
  }
};

TrainRequest new_request(const Arguments& arguments, Console& console, Start& begin,
                         const DataSettings& source, const std::shared_ptr<const Tokenizer>& tokenizer,
                         bool from_vocab_size, const std::shared_ptr<Communicator>& ranks) {
  set_vocabulary(tokenizer->vocab_size(), begin.init.has_value(), from_vocab_size, begin.settings);
  // A packed row contains several documents.
  if (source.order == ReadOrder::packed) begin.settings.derive("isolate", true);
  if (const std::string note = begin.choose_optimizer(arguments); !note.empty())
    console.log().info("{}", note);
  begin.finish_plan(tokenizer, console);
  TrainRequest request{.config = begin.settings.resolve(),
                       .tokenizer = tokenizer,
                       .source = source,
                       .run = arguments.path("output"),
                       .device = device_from(arguments, console.log(), ranks->local_rank()),
                       .ranks = ranks,
                       .force = arguments.flag("force"),
                       .stop_after = arguments.integer("stop-after", {.least = 0})};
  if (arguments.flag("skip-long")) request.source.longest_chat = request.config.model.context;
  if (begin.init) {
    check_same_tokens(*begin.init, *tokenizer);
    check_fits(*begin.init, request.config.model);
    if (request.config.lora) {
      const Device device = request.device->device();
      request.base =
          frozen(std::move(*begin.init), device, compute_dtype(request.config.train.dtype, device));
      return request;
    }
    const auto file = std::make_shared<ModelFile>(std::move(*begin.init));
    request.initial_weights = [file, config = request.config.model](std::span<float> weights) {
      copy_weights(*file, config, weights);
      file->weights = std::vector<float>();  // training needs the memory
    };
  }
  return request;
}

// Before any long work: whether a new run may be written to the folder of -o.
void check_output(const Arguments& arguments) {
  if (!arguments.given("output")) return;
  const std::filesystem::path run = arguments.path("output");
  PosixFileOps disk;
  RunFolder(disk, run).check_free(arguments.flag("force"));
  std::error_code missing;
  if (arguments.given("config") &&
      std::filesystem::equivalent(arguments.path("config"), run / "config.toml", missing))
    throw UsageError(fmt::format("the run would replace {}, which --config names", arguments.text("config")),
                     Hint{"copy the file to another place, or choose another folder with -o"});
}

// Trains in the folder of -o or, without it, in a new one. Only rank 0 chooses the new one.
int train_in_folder(TrainRequest request, const Start& begin, const Arguments& arguments, Console& console,
                    const Interrupt& interrupt, const SaveSignal& save_now) {
  Communicator& ranks = *request.ranks;
  PosixFileOps disk;
  std::optional<ClaimedFolder> claimed;
  on_all_ranks(ranks, "choosing the run's folder", [&] {
    if (ranks.first() && !arguments.given("output"))
      request.run = claimed.emplace(disk, begin.preset()).path();
  });
  std::string run = request.run.string();
  share_text(ranks, run, "the run's folder");
  request.run = run;
  try {
    // A part of the run was asked for with --stop-after.
    if (begin.planner && request.stop_after == 0) request.most_seconds = begin.planner->most_seconds();
    const ExpectedLoss expected = begin.planner ? begin.planner->expected() : ExpectedLoss();
    return run_and_print(std::move(request), expected, arguments, console, interrupt, save_now);
  } catch (const Interrupted&) {
    if (std::filesystem::exists(run))
      console.log().warning("stopped before the first checkpoint; to continue, give the same command{}",
                            claimed ? " with -o " + shell_word(run) : "");
    throw;
  }
}

// With several ranks, whose common speed a measurement before the start does not give, --minutes is
// a limit.
void limit_time(const Arguments& arguments, ConfigBuilder& settings) {
  if (planned_by(arguments, settings) == Planned::nothing || !arguments.given("minutes")) return;
  settings.derive("max_seconds", 60 * minutes_from(arguments));
  if (!settings.given("epochs")) settings.derive("steps", std::int64_t{0});
}

int start(const Arguments& arguments, Console& console, const std::shared_ptr<Communicator>& ranks) {
  const Interrupt interrupt;
  const SaveSignal save_now;
  std::optional<Start> begin;
  std::optional<NamedData> named;
  DataSettings source;
  std::optional<TokenizerSpec> spec;
  on_all_ranks(*ranks, "reading the settings", [&] {
    if (ranks->first()) check_output(arguments);
    begin.emplace(arguments, console.progress());
    begin->warn(console.log());
    named.emplace(arguments, &interrupt);
    source = data_from(arguments, begin->preset(), *named);
    source.layout = chat_layout_from(source, begin->init ? &*begin->init : nullptr);
    if (ranks->size() == 1)
      begin->begin_plan(arguments, source, console, interrupt);
    else
      limit_time(arguments, begin->settings);
    spec = begin->choose_tokenizer(arguments, source);
  });
  const auto tokenizer = tokenizer_on_all(*ranks, arguments, spec, source,
                                          begin->init ? &*begin->init : nullptr, console, interrupt);
  TrainRequest request;
  on_all_ranks(*ranks, "preparing the run", [&] {
    const bool from_vocab_size = spec && !arguments.given("tokenizer");
    request = new_request(arguments, console, *begin, source, tokenizer, from_vocab_size, ranks);
  });
  request.gpus = join_gpus(*ranks, request.device);
  return train_in_folder(std::move(request), *begin, arguments, console, interrupt, save_now);
}

int run_train(const Arguments& arguments, Console& console) {
  if (arguments.flag("dry-run") && !arguments.given("resume")) {
    if (read_launch().rank > 0) return 0;  // rank 0 prints the plan
    Start begin(arguments, console.progress());
    begin.warn(console.log());
    const ModelFile* const init = begin.init ? &*begin.init : nullptr;
    const Interrupt interrupt;
    std::optional<NamedData> named;  // until the data are not needed any more
    std::optional<TokenizerSpec> spec;
    if (planned_by(arguments, begin.settings) != Planned::nothing) {
      const DataSettings source = data_from(arguments, begin.preset(), named.emplace(arguments, &interrupt));
      begin.begin_plan(arguments, source, console, interrupt);
      spec = begin.choose_tokenizer(arguments, source);
    }
    if (const auto tokens = spec ? std::optional<std::int64_t>(spec->vocab_size)
                                 : vocabulary_from(arguments, begin.settings, begin.preset(), init))
      set_vocabulary(*tokens, init != nullptr, spec.has_value(), begin.settings);
    if (std::string note = begin.choose_optimizer(arguments); !note.empty())
      begin.derivations.push_back(note);
    begin.finish_plan(nullptr, console);
    const auto device = device_from(arguments, console.log());
    std::optional<FrozenModel> base;
    if (const Config& config = begin.settings.current(); config.lora)
      base = frozen(std::move(*begin.init), device->device(),
                    compute_dtype(config.train.dtype, device->device()));
    return dry_run(begin.settings, begin.derivations, base ? base->weights.get() : nullptr, *device, console);
  }
  const std::shared_ptr<Communicator> ranks = ranks_from(arguments);
  Console silent(false, true);
  Console& own = ranks->first() ? console : silent;
  return on_ranks(*ranks, [&] {
    check_same_command(*ranks, arguments);
    return arguments.given("resume") ? resume(arguments, own, ranks) : start(arguments, own, ranks);
  });
}

}  // namespace

int exit_code(const TrainResult& result) {
  if (result.status == RunStatus::interrupted) return 130;
  return result.status == RunStatus::diverged ? 3 : 0;
}

Command train_command() {
  static constexpr BasicSetting kBasic[] = {{"context", "model"},         {"steps", "training"},
                                            {"epochs", "training"},       {"max_seconds", "training"},
                                            {"batch_tokens", "training"}, {"lr", "training"},
                                            {"val_every", "training"}};
  // The options of a group. Advanced ones are listed only by --help-all.
  const auto in_group = [](std::string_view group, std::vector<Option> options, bool advanced = false) {
    for (Option& option : options) {
      option.group = group;
      option.advanced = advanced;
      option.common = false;
    }
    return options;
  };
  Command command = {
      .name = "train",
      .summary = "train a model from scratch, fine-tune one, or resume a run",
      .notes =
          "Without a preset, --config, --init or --depth, and without --steps, --epochs or --max-seconds, "
          "thimble chooses tokenizer, model, regularization and number of steps from the data, the measured "
          "speed and --minutes; it prints its choices and the expected loss. Options that are given are "
          "kept. "
          "Otherwise defaults are those of the preset quick. With --init, training uses AdamW at a low "
          "learning rate that follows the model's size. --dry-run prints the memory and compute that the "
          "run needs, and every setting with its origin.",
      .examples = {"thimble train --data book.txt -o runs/book",
                   "thimble train --data letters/ --minutes 30 -o runs/letters",
                   "thimble train --data chats.jsonl --preset chat --tokenizer bpe:1024 -o runs/chat",
                   "thimble train --resume runs/book --steps 5000",
                   "thimble train --data letters.txt --init runs/book --epochs 3 -o runs/letters",
                   "mpirun -n 4 thimble train --data book.txt -o runs/book",
                   "thimble train --preset golf --dry-run",
                   "thimble train --preset llama --depth 6 --dry-run",
                   "thimble train --preset golf --set layers=11 --logit-softcap 0 --dry-run"},
      .run = run_train};
  const auto add = [&](const std::vector<Option>& options) {
    command.options.insert(command.options.end(), options.begin(), options.end());
  };
  add(in_group(
      "data",
      {{.name = "data",
        .value = "PATH",
        .help = "training data: texts or chats (.txt, .md, .html, .jsonl, .csv, .parquet, exports of "
                "messengers), a folder of them, or the output of `thimble data build`"},
       {.name = "val-data", .value = "PATH", .help = "validation data", .shown_default = "a part of --data"},
       {.name = "tokenizer",
        .value = "T",
        .help = "a file, a folder, `bytes`, or one to train: bpe:N or sentencepiece:N",
        .shown_default = "the data's, or chosen from its size; bytes with a preset or a length"},
       {.name = "chat", .help = "read --data as conversations"}}));
  add(in_group("data",
               {{.name = "val-fraction",
                 .value = "F",
                 .initial = "0.1",
                 .help = "fraction of --data used for validation, in bytes; 0: train without validation"},
                documents_option(),
                text_field_option(),
                assistant_option(),
                {.name = "skip-long",
                 .help = "leave out chats longer than the context instead of cutting them into pieces"},
                {.name = "order",
                 .help = "order in which training rows are read",
                 .choices = {"shifted", "shuffled", "sequential", "golf", "golf-mlx", "packed"},
                 .shown_default = "shifted; packed for chats and lines; as published for golf presets"}},
               true));
  add(in_group(
      "model",
      {{.name = "preset",
        .help = "settings to start from",
        .choices = preset_names(),
        .shown_default = "chosen from the data; quick with a length, none with --config"},
       {.name = "depth",
        .value = "N",
        .help = "number of layers; width, batch size and learning rates are scaled to match"},
       {.name = "init", .value = "MODEL", .help = "start from the weights of a model (fine-tuning)"}}));
  add(in_group("model",
               {{.name = "config", .value = "FILE", .help = "TOML file of settings; overrides the preset"},
                {.name = "set",
                 .value = "KEY=VALUE",
                 .help = "one setting; overrides preset and file",
                 .repeated = true}},
               true));
  add(in_group("training",
               {{.name = "resume", .value = "RUN", .help = "continue a run, or one of its checkpoints"},
                {.name = "optimizer",
                 .help = "optimizer of the matrices; everything else is trained with AdamW",
                 .choices = {"muon", "adamw"},
                 .shown_default = "the preset's; adamw with --init"},
                {.name = "minutes",
                 .value = "N",
                 .initial = "5",
                 .help = "minutes that the run may take; the measured speed gives the number of steps",
                 .shown_default = "5, or no limit with a preset or a length"},
                device_option(),
                common::threads()}));
  add(in_group("training",
               {{.name = "stop-after",
                 .value = "N",
                 .initial = "0",
                 .help = "save and stop after N steps; 0: train to the end"},
                rank_timeout_option()},
               true));
  add(in_group("output", {{.name = "output",
                           .letter = 'o',
                           .value = "RUN",
                           .help = "run folder, new or empty; --force replaces a run",
                           .shown_default = "runs/PRESET-N"},
                          common::force(),
                          {.name = "dry-run", .help = "print the settings and their cost, then exit"},
                          {.name = "dashboard",
                           .value = "PORT",
                           .help = "serve the live report at http://127.0.0.1:PORT; 0: any free port"},
                          common::json(),
                          common::quiet()}));
  add(in_group("output",
               {{.name = "samples",
                 .value = "N",
                 .initial = "2",
                 .help = "texts generated at each validation for the report; 0: none"},
                {.name = "memorization",
                 .value = "N",
                 .initial = "8192",
                 .help = "maximum number of tokens sampled at the end of the run to measure how much of the "
                         "training text the model repeats; 0: do not measure"},
                {.name = "tensorboard", .help = "also write a TensorBoard event file to RUN"}},
               true));
  add(setting_options(kDefaultPreset, kBasic));
  return command;
}

}  // namespace thimble
