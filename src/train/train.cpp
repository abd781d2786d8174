#include "train/train.h"

#include "base/error.h"
#include "config/toml.h"
#include "data/data_folder.h"
#include "model/model.h"
#include "train/metrics.h"
#include "train/ranks.h"
#include "train/run_cost.h"
#include "train/trainer.h"

namespace thimble {

namespace {

// Rank 0 opens the data first: it may have to make it. Then the others do, who find it made.
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
    check(is_data_folder(request.source.data) || is_data_folder(folder.data()),
          Hint{"the run's folder must lie on a disk that all machines share; or give --data shards"},
          "{} is not there", folder.data().string());
    data = open_train_data(open, ops, log, progress, interrupt);
  });
  return std::move(*data);
}

Config settled(const Config& config, const DeviceRuntime& device, const Communicator& ranks) {
  // Ranks of one machine share its memory; a GPU is one rank's alone.
  const std::int64_t sharing = device.device() == Device::cpu ? ranks.local_size() : 1;
  Config result = with_micro_batch(config, available_memory(device) / sharing, device.device());
  const DType dtype = compute_dtype(config.train.dtype, device.device());
  result.train.dtype = dtype == DType::bf16  ? ComputeDType::bf16
                       : dtype == DType::f16 ? ComputeDType::f16
                                             : ComputeDType::f32;
  result.state.loop_on = true;  // what the run comes to; checkpoints say whether it has
  return result;
}

// The request's config with what was left to the machine (dtype, micro-batch) written down, so that the run goes on with
// it anywhere. Every rank asks its own machine; the smallest micro-batch fits all.
Config settled_on_all(const TrainRequest& request) {
  Config config;
  check(request.resume || request.config.state.loop_on,
        Hint{"loop_start says when; loop_count = 0 is no loop at all"},
        "loop_on = false describes a model that has not come to its loop yet: training sets it");
  on_all_ranks(*request.ranks, "settling the micro-batch",
               [&] { config = settled(request.config, *request.device, *request.ranks); });
  config.train.micro_batch = smallest(*request.ranks, config.train.micro_batch, "the micro-batch");
  return config;
}

// What must be alike on all ranks before the first step.
void compare_ranks(const RunContext& run, const Trainer& trainer) {
  check_same_start(run.ranks(),
                   {.config = to_toml(run.config),
                    .data_digest = trainer.state().data_digest,
                    .tokenizer_digest = run.tokenizer().digest().hex(),
                    .device = run.request.device->device() == Device::cuda ? "cuda" : "cpu",
                    .step = trainer.state().step},
                   trainer.model().weights());
}

// What one rank alone knows is said by it, before anything it holds goes away that the others still wait for.
TrainResult run_or_end_all(Trainer& trainer, Communicator& ranks) {
  if (ranks.size() == 1) return trainer.run();
  try {
    return trainer.run();
  } catch (const FailedTogether&) {
    throw;  // all know of it already
  } catch (const Error& error) {
    abort_all(ranks, error);
  } catch (const std::exception& error) {
    abort_all(ranks, Error(error.what()));
  } catch (...) {
    abort_all(ranks, Error("nobody reads the output any more"));  // as on_ranks
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
    if (ranks.first()) start.emplace(request.run, interrupt);
    folder.create();
    metrics.emplace(ops, folder.metrics());  // from here on the folder is ours alone
    if (start) start->locked();
    if (!request.resume && ranks.first()) folder.check_free(request.force);
  });
  const TrainData data = open_on_all(request, folder, ops, own_log, own_progress, interrupt);
  const Config config = settled_on_all(request);
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
  on_all_ranks(ranks, "making the model", [&] { trainer.emplace(run); });
  compare_ranks(run, *trainer);
  on_all_ranks(ranks, "taking the run's folder", [&] { trainer->take_folder(); });
  if (start) start->keep();
  return run_or_end_all(*trainer, ranks);
}

}  // namespace thimble
