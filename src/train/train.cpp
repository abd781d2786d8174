#include "train/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/table.h"
#include "base/text.h"
#include "config/toml.h"
#include "data/data_folder.h"
#include "data/loader.h"
#include "eval/memorization.h"
#include "formats/model_file.h"
#include "model/model.h"
#include "train/metrics.h"
#include "train/ranks.h"
#include "train/run_cost.h"
#include "train/trainer.h"

namespace thimble {

namespace {

// Rank 0 opens the data first, because it may have to build it. Then the other ranks open it.
TrainData open_on_all(const TrainRequest& request, const RunFolder& folder, FileOps& ops, const Log& log,
                      const ProgressOutput& progress, const Interrupt& interrupt) {
  Communicator& ranks = *request.ranks;
  OpenDataRequest open{.settings = request.source,
                       .tokenizer = request.tokenizer,
                       .loss_on = request.config.train.loss_on,
                       .build_in = folder.data(),
                       .built = !request.resume            ? BuiltData::is_remade
                                : request.source_was_named ? BuiltData::must_match
                                                           : BuiltData::is_the_data};
  std::optional<TrainData> data;
  on_all_ranks(
      ranks, "rank 0 opens the data",
      [&] {
        if (ranks.first()) data = open_train_data(open, ops, log, progress, interrupt);
      },
      Wait::forever);
  on_all_ranks(ranks, "opening the data", [&] {
    if (ranks.first()) return;
    open.built = BuiltData::is_the_data;
    check(
        is_data_folder(request.source.data) || is_data_folder(folder.data()),
        Hint{"put the run's folder on a disk that all machines share, or pass a folder of shards as --data"},
        "{} does not exist on this rank", folder.data().string());
    data = open_train_data(open, ops, log, progress, interrupt);
  });
  return std::move(*data);
}

Config settled(const TrainRequest& request) {
  const Config& config = request.config;
  const DeviceRuntime& device = *request.device;
  // Ranks on one machine share its memory; a GPU belongs to one rank.
  const std::int64_t sharing = device.device() == Device::cpu ? request.ranks->local_size() : 1;
  Config result = with_micro_batch(config, available_memory(device) / sharing, device.device(),
                                   request.base ? request.base->weights.get() : nullptr);
  const DType dtype = compute_dtype(config.train.dtype, device.device());
  result.train.dtype = dtype == DType::bf16  ? ComputeDType::bf16
                       : dtype == DType::f16 ? ComputeDType::f16
                                             : ComputeDType::f32;
  result.state.loop_on = true;  // the state at the end; each checkpoint stores its current state
  return result;
}

// Replaces `epochs` by the number of steps that read the training data so many times.
void epochs_to_steps(const TrainRequest& request, const TrainData& data, Config& config) {
  TrainConfig& train = config.train;
  if (train.epochs == 0) return;
  const BatchLoader loader(data.train, loader_settings(config, request.source, *request.ranks), config.model);
  const double per_step = static_cast<double>(train.batch_tokens) * (1 - loader.padding());
  const double steps = train.epochs * static_cast<double>(loader.tokens_per_epoch()) / per_step;
  train.steps = std::max<std::int64_t>(1, std::llround(steps));
  train.epochs = 0;
}

// The request's config with the automatic settings (dtype, micro-batch, steps) filled in, so that a
// run resumed on another machine uses the same values. Each rank computes the micro-batch that fits
// its machine; all use the smallest.
Config settled_on_all(const TrainRequest& request, const TrainData& data) {
  Config config;
  check(request.resume || request.config.state.loop_on,
        Hint{"use loop_start to delay the layer loop, or loop_count = 0 to disable it"},
        "loop_on cannot be set to false: training sets it");
  on_all_ranks(*request.ranks, "choosing the micro-batch", [&] { config = settled(request); });
  config.train.micro_batch = smallest(*request.ranks, config.train.micro_batch, "the micro-batch");
  on_all_ranks(*request.ranks, "counting the steps", [&] { epochs_to_steps(request, data, config); });
  return config;
}

// Checks that all ranks start from the same state.
void compare_ranks(const RunContext& run, const Trainer& trainer) {
  check_same_start(run.ranks(),
                   {.config = to_toml(run.config),
                    .data_digest = trainer.state().data_digest,
                    .tokenizer_digest = run.tokenizer().digest().hex(),
                    .device = run.request.device->device() == Device::cuda ? "cuda" : "cpu",
                    .step = trainer.state().step},
                   trainer.model().weights());
}

// An error that only this rank has is reported here and ends all processes. This must happen before
// the trainer is destroyed, because other ranks may be waiting for this one.
TrainResult run_or_end_all(Trainer& trainer, Communicator& ranks) {
  if (ranks.size() == 1) return trainer.run();
  try {
    return trainer.run();
  } catch (const CollectiveFailure&) {
    throw;  // all ranks have it
  } catch (const Error& error) {
    abort_all(ranks, error);
  } catch (const std::exception& error) {
    abort_all(ranks, Error(error.what()));
  } catch (...) {
    abort_all(ranks, Error("the output was closed"));  // as in on_ranks
  }
}

// Memorization is measured with one token for so many of training, so that short runs stay short.
constexpr std::int64_t kTrainedPerSampled = 64;
constexpr std::int64_t kFewestSampled = 256;
// Limits that keep the measurement to a few seconds: tokens to search, and parameters times sampled
// tokens. On two CPU cores 1e11 of these take about 3 s.
constexpr std::int64_t kMostWork = 100'000'000'000, kMostWorkOnGpu = 50 * kMostWork;
constexpr std::uint64_t kMostSearched = 100'000'000;
constexpr std::uint64_t kMaxRecordBytes = 1 << 24;  // of run.json

// The number of tokens to sample; 0 with an empty reason: too short a run to say anything.
struct SampledTokens {
  std::int64_t tokens = 0;
  std::string reason = {};
};

SampledTokens tokens_to_sample(const TrainRequest& request, const Config& config, const TrainData& data,
                               const TrainResult& result) {
  const std::int64_t wanted = std::min(request.memorization_tokens, result.tokens / kTrainedPerSampled);
  if (!is_finished(result.status) || wanted < kFewestSampled) return {};
  const std::int64_t parameters = ParamTable(config.model).count();
  const bool on_gpu = request.device->device() != Device::cpu;
  const std::int64_t tokens = std::min(wanted, (on_gpu ? kMostWorkOnGpu : kMostWork) / parameters);
  if (data.train.size() > kMostSearched)
    return {0, fmt::format("searching {} tokens", with_unit(static_cast<double>(data.train.size())))};
  if (tokens < kFewestSampled)
    return {0, fmt::format("sampling from {} parameters", with_unit(static_cast<double>(parameters)))};
  return {tokens};
}

// Measures the model that the run's folder now opens as. The caller still holds the folder's lock.
void measure_run(const RunContext& run, TrainResult& result) {
  const SampledTokens sampled = tokens_to_sample(run.request, run.config, run.data, result);
  const std::string command =
      fmt::format("thimble qa {} --memorized", shell_word(run.folder.path().string()));
  if (!sampled.reason.empty())
    run.log.info("memorization was not measured, because {} takes long; measure it with `{}`", sampled.reason,
                 command);
  if (sampled.tokens == 0) return;
  try {
    const Context context(run.request.device, run.log);
    Model model =
        make_model(open_model(run.folder.path(), run.config.lora ? WeightsAs::stored : WeightsAs::floats),
                   context, compute_dtype(run.config.train.dtype, context.device()));
    result.memorization = measure_memorization(
        model, run.tokenizer(), memorization_data(run.data, run.progress, &run.interrupt),
        {.tokens = sampled.tokens, .seed = static_cast<std::uint64_t>(run.config.train.seed)}, run.progress,
        &run.interrupt);
    const std::filesystem::path record = run.folder.path() / "run.json";
    Json json = parse_json(read_file(record, kMaxRecordBytes), record.string());
    run.folder.write_text("run.json",
                          json.set("memorization", result.memorization->to_json()).dump(2) + "\n");
  } catch (const Interrupted&) {  // the model is saved already
  } catch (const Error& error) {
    run.log.warning("memorization was not measured: {}; try `{}`", error.what(), command);
  }
}

}  // namespace

TrainResult train(const TrainRequest& request, const Log& log, const ProgressOutput& progress,
                  const Interrupt& interrupt, const SaveSignal* save_now, FileOps* disk) {
  Communicator& ranks = *request.ranks;
  PosixFileOps posix;
  DiscardingFileOps discarding;
  FileOps& ops = !ranks.first() ? static_cast<FileOps&>(discarding) : disk ? *disk : posix;
  const Log silent = Log::nowhere();
  const Log& own_log = ranks.first() ? log : silent;
  const ProgressOutput own_progress = ranks.first() ? progress : ProgressOutput::nowhere();
  RunFolder folder(ops, request.run);
  std::optional<StartGuard> start;
  std::optional<MetricsFile> metrics;
  on_all_ranks(ranks, "opening the run", [&] {
    // Checked before anything is written there, and again when no other process can start in it.
    const bool is_checked = !request.resume && ranks.first();
    if (is_checked) folder.check_free(request.force);
    if (ranks.first()) start.emplace(request.run, interrupt);
    folder.create();
    metrics.emplace(ops, folder.metrics());  // locks the folder
    if (is_checked) folder.check_free(request.force);
    if (start) start->locked();
  });
  TrainData data = open_on_all(request, folder, ops, own_log, own_progress, interrupt);
  data.train.set_vocab_size(request.config.model.vocab_size);
  if (data.val) data.val->set_vocab_size(request.config.model.vocab_size);
  const Config config = settled_on_all(request, data);
  const RunContext run{.request = request,
                       .config = config,
                       .data = data,
                       .log = own_log,
                       .progress = own_progress,
                       .ops = ops,
                       .folder = folder,
                       .metrics = *metrics,
                       .interrupt = interrupt,
                       .save_now = save_now};
  std::optional<Trainer> trainer;
  on_all_ranks(ranks, "creating the model", [&] { trainer.emplace(run); });
  compare_ranks(run, *trainer);
  on_all_ranks(ranks, "preparing the run's folder", [&] { trainer->prepare_folder(); });
  if (start) start->keep();
  TrainResult result = run_or_end_all(*trainer, ranks);
  trainer.reset();  // its memory is needed for the model that is measured
  if (ranks.first()) measure_run(run, result);
  return result;
}

}  // namespace thimble
