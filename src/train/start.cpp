#include "train/start.h"

#include "base/error.h"
#include "data/data_folder.h"
#include "dist/communicator.h"
#include "model/model.h"
#include "train/ranks.h"
#include "train/run_cost.h"

namespace thimble {

namespace {

Config settled(const Config& config, const DeviceRuntime& device, const Communicator& ranks) {
  // Ranks of one machine share its memory; a card is one rank's alone.
  const std::int64_t sharing = device.device() == Device::cpu ? ranks.local_size() : 1;
  Config result = with_micro_batch(config, available_memory(device) / sharing, device.device());
  const DType dtype = compute_dtype(config.train.dtype, device.device());
  result.train.dtype = dtype == DType::bf16  ? ComputeDType::bf16
                       : dtype == DType::f16 ? ComputeDType::f16
                                             : ComputeDType::f32;
  result.model.loop_on = true;  // what the run comes to; checkpoints say whether it has
  return result;
}

}  // namespace

Config settled_on_all(const TrainRequest& request) {
  Config config;
  check(request.resume || request.config.model.loop_on,
        Hint{"loop_start says when; loop_count = 0 is no loop at all"},
        "loop_on = false describes a model that has not come to its loop yet: training sets it");
  on_all_ranks(*request.ranks, "settling the micro-batch",
               [&] { config = settled(request.config, *request.device, *request.ranks); });
  config.train.micro_batch = smallest(*request.ranks, config.train.micro_batch, "the micro-batch");
  return config;
}

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

}  // namespace thimble
