#include "golf/run.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/machine.h"
#include "config/toml.h"
#include "data/data_folder.h"
#include "dist/communicator.h"
#include "eval/eval_data.h"
#include "formats/npz.h"
#include "formats/pack_model.h"
#include "golf/log.h"
#include "model/model.h"
#include "pack/gptq.h"
#include "tokenizer/tokenizer.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/run_folder.h"
#include "train/validation.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

std::shared_ptr<const Tokenizer> open_golf_tokenizer(const GolfSettings& golf) {
  check(golf.tokenizer.extension() == ".model", Hint{"use the .model file of the published data"},
        "TOKENIZER_PATH must point to a SentencePiece .model file: {}", golf.tokenizer_text);
  std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(golf.tokenizer);
  check(tokenizer->vocab_size() == golf.config.model.vocab_size,
        Hint{fmt::format("set VOCAB_SIZE={}, or TOKENIZER_PATH to another file", tokenizer->vocab_size())},
        "VOCAB_SIZE={} does not match tokenizer vocab_size={}", golf.config.model.vocab_size,
        tokenizer->vocab_size());
  return tokenizer;
}

DataFolder open_golf_folder(const GolfSettings& golf) {
  const Hint hint{"set DATA_PATH to the folder of the shards"};
  check(is_data_folder(golf.data), hint, "No files found for pattern: {}/fineweb_train_*.bin",
        golf.data_text);
  DataFolder folder = open_data_folder(golf.data);
  check(!folder.train.empty(), hint, "No files found for pattern: {}/fineweb_train_*.bin", golf.data_text);
  check(!folder.val.empty(), hint, "No files found for pattern: {}/fineweb_val_*.bin", golf.data_text);
  return folder;
}

GolfData describe_data(const GolfSettings& golf, const DataFolder& folder, const TokenSet& val) {
  const std::int64_t T = golf.config.model.context;
  const std::int64_t usable = static_cast<std::int64_t>(val.size() - 1) / T * T;
  check(usable > 0, Hint{"lower TRAIN_SEQ_LEN or use more data"},
        "Validation split is too short for TRAIN_SEQ_LEN={}", T);
  const std::int64_t most = golf.config.train.val_tokens;
  return {.name = fs::weakly_canonical(golf.data).filename().string(),
          .train_shards = folder.train.size(),
          .published_shards = folder.published_train_files,
          .val_tokens = most > 0 ? std::min(most, usable) : usable};
}

// An interrupted run and its newest checkpoint.
struct ResumedRun {
  fs::path checkpoint;
  Config config;  // to continue with
  TrainState state;
  std::optional<RunStatus> ended;  // nullopt: training continues
};

std::optional<RunStatus> status_at_end(const TrainConfig& train, const TrainState& state) {
  if (state.validation_due) return std::nullopt;
  if (train.makes_no_step() || (train.steps > 0 && state.step >= train.steps)) return RunStatus::completed;
  if (train.max_seconds > 0 && state.elapsed_seconds >= train.max_seconds) return RunStatus::wallclock;
  if (out_of_patience(train, state)) return RunStatus::early_stop;
  return std::nullopt;
}

ResumedRun open_interrupted_run(const GolfSettings& golf, bool force) {
  PosixFileOps ops;
  const RunFolder run(ops, golf.run_folder());
  check(!run.checkpoints_newest_first().empty(),
        Hint{"set RUN_ID and OUT_DIR as in the interrupted run, or start anew without --resume"},
        "{} contains no run to resume", golf.run_folder().string());
  check(force || !fs::exists(golf.artifact()), Hint{"choose another RUN_ID for a new run"},
        "{} already exists: the run is finished", golf.artifact().string());
  const ResumePoint point = open_resume_point(run, {}, force);
  const CheckpointHead& head = point.head;
  // What was chosen automatically on the machine where the run began stays.
  Config config = golf.config;
  if (config.train.dtype == ComputeDType::automatic) config.train.dtype = head.config.train.dtype;
  if (config.train.micro_batch == 0) config.train.micro_batch = head.config.train.micro_batch;
  check_changes(head.config, config, force, "another RUN_ID to start a new run");
  return {.checkpoint = point.file.name(),
          .config = config,
          .state = head.state,
          .ended = status_at_end(config.train, head.state)};
}

// Outputs named by RUN_ID are replaced only with --force or when the run is resumed; the log is
// appended to. The outputs of --like torch have the same names in every run and are always
// replaced, as in train_gpt.py.
void check_outputs(FileOps& ops, const GolfSettings& golf, bool force) {
  if (force) return;
  std::vector<fs::path> outputs = {golf.artifact()};
  if (golf.script == GolfScript::mlx) outputs.insert(outputs.end(), {golf.raw_model(), golf.int8_model()});
  for (const fs::path& output : outputs)
    check(!fs::exists(output), Hint{"choose another RUN_ID, or pass --force"}, "{} already exists",
          output.string());
  RunFolder(ops, golf.run_folder()).check_free(force);
}

// The start of the log file, not printed: how to repeat the run, its config and the build.
std::string preamble(const GolfSettings& golf) {
  const std::string rule(100, '=');
  std::string text =
      fmt::format("# thimble golf --like {}{}\n", golf.script == GolfScript::mlx ? "mlx" : "torch",
                  golf.plus ? " --plus" : "");
  for (const auto& [name, value] : golf.environment) text += fmt::format("# {}={}\n", name, value);
  return fmt::format("{}{}{}\nRunning thimble {} ({}, {})\n{}", text, to_toml(golf.config), rule, version(),
                     build_type(), compiler(), rule);
}

TrainRequest training(const GolfSettings& golf, const GolfContext& context,
                      std::shared_ptr<const Tokenizer> tokenizer, const std::optional<ResumedRun>& resumed,
                      TrainObserver* observer) {
  const bool mlx = golf.script == GolfScript::mlx;
  DataSettings source{.data = fs::absolute(golf.data), .order = mlx ? ReadOrder::golf_mlx : ReadOrder::golf};
  if (mlx) source.sub_batch_tokens = golf.sub_batch_tokens;
  return {.config = resumed ? resumed->config : golf.config,
          .tokenizer = std::move(tokenizer),
          .source = source,
          .run = golf.run_folder(),
          .device = context.device,
          .ranks = context.ranks,
          .gpus = context.gpus,
          .resume = resumed.has_value(),
          .force = context.force,
          .validate_first = golf.config.train.val_every > 0,
          .observer = observer,
          .clock = context.clock};
}

// Drops the trainer's info lines, which the scripts do not print, and its epoch warnings, for which
// the golf log has a line. Other warnings are passed on.
Log only_warnings(const Log& log) {
  return {LogLevel::warning, [&log](LogLevel, std::string_view line) {
            if (!line.starts_with("epoch ")) log.warning("{}", line);
          }};
}

}  // namespace

GolfResult run_golf(const GolfSettings& golf, const GolfContext& context) {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<ResumedRun> resumed;
  on_all_ranks(*context.ranks, "opening the data", [&] {
    tokenizer = open_golf_tokenizer(golf);
    open_golf_folder(golf);
    if (context.resume) resumed = open_interrupted_run(golf, context.force);
  });
  const auto train_with = [&](TrainObserver* observer, const Log& log) {
    if (!resumed || !resumed->ended)
      return train(training(golf, context, tokenizer, resumed, observer), log, ProgressOutput::nowhere(),
                   context.interrupt);
    TrainResult result;
    result.status = *resumed->ended;
    result.steps = resumed->state.step;
    result.checkpoint = resumed->checkpoint;
    return result;
  };
  if (!context.ranks->first()) return {.training = train_with(nullptr, Log::nowhere()), .roundtrip = {}};
  for (const std::string& note : golf.notes) context.log.info("{}", note);
  for (const std::string& warning : golf.warnings) context.log.warning("{}", warning);
  const DataFolder folder = open_golf_folder(golf);
  check_tokenizer(folder, *tokenizer, golf.tokenizer);
  const TokenSet val = open_split(folder, DataSplit::val, folder.marks(*tokenizer, LossOn::assistant));
  const GolfData data = describe_data(golf, folder, val);
  PosixFileOps ops;
  check_outputs(ops, golf, context.force || context.resume);
  if (golf.script == GolfScript::torch && data.published_shards && data.train_shards < *data.published_shards)
    context.log.warning("{} has {} of {} training shards: epochs are shorter", data.name, data.train_shards,
                        *data.published_shards);

  make_folders(ops, golf.out);
  GolfLog log(ops, golf.log_file(), context.print);
  log.file_only(preamble(golf));
  const DType compute = compute_dtype(golf.config.train.dtype, context.device->device());
  for (const std::string& line : opening_lines(golf, data, ParamTable(golf.config.model), compute))
    log.line(line);

  GolfLines lines(golf, data, log);
  if (resumed)
    lines.resume(resumed->state.position,
                 read_history(golf.run_folder() / "metrics.jsonl", resumed->state.step).seconds());
  const Log warnings = only_warnings(context.log);
  GolfResult result{.training = train_with(&lines, warnings), .roundtrip = {}};
  const RunStatus status = result.training.status;
  result.interrupted = status == RunStatus::interrupted;
  if (result.interrupted || status == RunStatus::diverged) return result;
  if (status == RunStatus::wallclock) log.line(lines.stopping_early(result.training.steps));
  try {
    result.roundtrip = finish_golf({.golf = golf,
                                    .context = context,
                                    .tokenizer = *tokenizer,
                                    .val = val,
                                    .checkpoint = result.training.checkpoint,
                                    .compute = compute,
                                    .lines = lines,
                                    .log = log,
                                    .ops = ops});
  } catch (const Interrupted&) {
    result.interrupted = true;
  }
  return result;
}

namespace {

namespace fs = std::filesystem;

class Finish {
 public:
  explicit Finish(const GolfFinish& parts)
      : parts_(parts), golf_(parts.golf), model_(open_model(parts.checkpoint)), table_(model_.config.model) {}

  Score run() {
    const bool torch = golf_.script == GolfScript::torch;
    if (torch) parts_.log.line(peak_memory());
    write_raw();
    write_int8();
    const Score score = validate_int8();
    write_own();
    return score;
  }

 private:
  // Of the GPU, or of this process if it computes on the CPU.
  std::string peak_memory() const {
    std::int64_t bytes = parts_.context.device->peak_bytes();
    if (bytes == 0) {
      rusage usage{};
      getrusage(RUSAGE_SELF, &usage);
      bytes = 1024 * usage.ru_maxrss;
    }
    return fmt::format("peak memory allocated: {0} MiB reserved: {0} MiB", bytes >> 20);
  }

  // See check_outputs().
  bool replaces() const { return parts_.context.force || parts_.context.resume; }
  Existing existing() const {
    return replaces() || golf_.script == GolfScript::torch ? Existing::replace : Existing::refuse;
  }

  void write_raw() {
    const bool torch = golf_.script == GolfScript::torch;
    const std::string bytes =
        torch ? torch_state_dict(table_, model_.weights) : npz_of(table_, model_.weights);
    write_file(parts_.ops, golf_.raw_model(), bytes, existing());
    parts_.log.line(raw_model_line(golf_, bytes.size()));
    if (!torch) return;
    parts_.log.line(fmt::format("Code size: {} bytes", parts_.context.code_bytes));
    parts_.log.line(fmt::format("Total submission size: {} bytes", bytes.size() + parts_.context.code_bytes));
  }

  void write_int8() {
    Int8Stats stats;
    const bool torch = golf_.script == GolfScript::torch;
    const std::vector<PackedTensor> tensors =
        quantize_int8_state(table_, model_.weights, golf_.keep_f32, stats);
    const std::string state = int8_state(table_, tensors, torch ? PickledBy::torch : PickledBy::numpy);
    const std::string bytes = int8_ptz(state);
    write_file(parts_.ops, golf_.int8_model(), bytes, existing());
    parts_.log.line(int8_line(golf_, bytes.size(), state.size(), stats));
    if (torch)
      parts_.log.line(
          fmt::format("Total submission size int8+zlib: {} bytes", bytes.size() + parts_.context.code_bytes));
  }

  Score validate_int8() {
    return validate(open_int8_state(golf_.int8_model(), model_.config), "int8_zlib", 0);
  }

  // Scores the model and writes the two roundtrip lines.
  Score validate(const ModelFile& file, std::string_view name, std::int64_t stride) {
    const Context context(parts_.context.device, parts_.context.log);
    Model model = make_model(file, context, parts_.compute);
    const ByteTable bytes(parts_.tokenizer, static_cast<TokenId>(file.config.model.vocab_size));
    const bool shown = stride == 0;  // val_progress counts non-overlapping windows
    const double started = seconds_now();
    parts_.lines.begin_validation();
    const Score score = score_set(model, bytes, parts_.val,
                                  {.stride = stride,
                                   .val_tokens = golf_.config.train.val_tokens,
                                   .isolate = file.config.model.isolate,
                                   .on_scored =
                                       [&](std::int64_t tokens) {
                                         if (shown) parts_.lines.validating(tokens);
                                       }},
                                  ProgressOutput::nowhere(), &parts_.context.interrupt);
    parts_.log.line(fmt::format("final_{}_roundtrip {} eval_time:{:.0f}ms", name, score_text(score),
                                1000 * (seconds_now() - started)));
    parts_.log.line(fmt::format("final_{}_roundtrip_exact {}", name, exact_score_text(score)));
    return score;
  }

  // The competition forbids reading training data after the time limit, so GPTQ is calibrated on
  // samples of the model.
  GptqFactors factors_from_samples() {
    constexpr std::int64_t kTokens = 131072;
    const auto bos = parts_.tokenizer.special().bos;
    check(bos.has_value(), "pack_gptq needs a tokenizer with a bos token to start samples, found none");
    const Context context(parts_.context.device, parts_.context.log);
    Model model = make_model(model_, context, parts_.compute);
    const Grid samples =
        sampled_windows(model, *bos, kTokens, 0, ProgressOutput::nowhere(), &parts_.context.interrupt);
    const Interrupt* interrupt = &parts_.context.interrupt;
    const ProgressOutput nowhere;
    return GptqFactors(calibrate(model, samples, nowhere, interrupt), nowhere, interrupt);
  }

  // thimble's own outputs: the checkpoint already exists; the artifact is packed with the preset's
  // settings.
  void write_own() {
    const PackConfig& pack = golf_.config.pack;
    PackRequest request{.options = pack_options(pack, true)};
    const GptqFactors factors = pack.gptq ? factors_from_samples() : GptqFactors();
    if (pack.gptq) request.options.gptq = &factors;
    request.code_bytes = parts_.context.code_bytes;
    const PackResult packed =
        pack_model(model_, request, ProgressOutput::nowhere(), &parts_.context.interrupt);
    write_file(parts_.ops, golf_.artifact(), packed.bytes, replaces() ? Existing::replace : Existing::refuse);
    parts_.log.line(fmt::format("saved_checkpoint:{} bytes:{}", parts_.checkpoint.string(),
                                fs::file_size(parts_.checkpoint)));
    parts_.log.line(
        fmt::format("saved_artifact:{} bytes:{}", golf_.artifact().string(), packed.bytes.size()));
    if (golf_.plus)
      validate(open_model(golf_.artifact()),
               fmt::format("int{}_{}", request.options.rule.bits, name_of(request.options.codec)),
               pack.stride);
  }

  const GolfFinish& parts_;
  const GolfSettings& golf_;
  ModelFile model_;
  ParamTable table_;
};

}  // namespace

Score finish_golf(const GolfFinish& finish) {
  return Finish(finish).run();
}

}  // namespace thimble
