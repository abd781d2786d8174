// One optimizer step, from the next batch to the update: forward and backward, micro-batch after micro-batch, then the
// optimizer.
//
// The loss is the sum over the step's targets divided by their number, whatever the micro-batches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "data/loader.h"
#include "dist/communicator.h"
#include "model/model.h"
#include "optim/optimizer.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

struct StepRequest {
  std::int64_t step = 0;  // counts from 0; seeds dropout
  double multiplier = 1;  // of the learning rates
  int qat_bits = 0;
  UpdateSizes* sizes = nullptr;  // filled in where it is wanted
};

struct StepResult {
  double loss = 0;                       // nats per target
  double grad_norm = 0;                  // before clipping
  bool updated = false;                  // not where loss or norm is not finite
  bool skipped = false;                  // not updated, since the loss was scaled too far: training goes on
  double loss_scale = 0;                 // of the next step; 0: the loss is not scaled
  std::int64_t tokens = 0, targets = 0;  // read, and learned from
  std::uint64_t bytes = 0;               // of text, that the targets stand for
  double input_seconds = 0;              // spent waiting for the data
  std::string warning = {};              // of the loader
};

// What a step works on.
struct StepParts {
  const Config& config;
  const Context& context;
  Model& model;
  Optimizer& optimizer;
  BatchLoader& loader;
  const ByteTable& bytes;
  Communicator& ranks;
  DeviceCommunicator* gpus = nullptr;  // of several ranks on GPUs
};

class StepRunner {
 public:
  virtual ~StepRunner() = default;

  virtual StepResult run(const StepRequest& request) = 0;
  // Forward and backward of one micro-batch of each size, without update; its data is not consumed. What is made on
  // first use (programs, plans, pages of memory) is there afterwards.
  virtual void prime(int qat_bits) = 0;

  // Weights and moments from where steps change them into host memory, and back: before they are read there, and after
  // they were written.
  virtual void fetch() {}
  virtual void fetch_weights() {}  // those alone, which every rank has
  virtual void send() {}
};

// What the runners of all devices share.
// Micro-batches are counted over all ranks: no two of a step drop the same.
std::uint64_t dropout_seed(const TrainConfig& config, const Communicator& ranks, std::int64_t step,
                           std::size_t micro_batch);
std::uint64_t bytes_of_targets(const Rows& rows, const ByteTable& bytes);
// This rank's loss and bytes become those of all.
void add_up(Communicator& ranks, std::int64_t step, StepResult& result);

// For the device of the context.
std::unique_ptr<StepRunner> make_step_runner(const StepParts& parts);

// Steps on a GPU: weights, gradients and moments live in its memory (optim/device_step.h).
std::unique_ptr<StepRunner> make_gpu_step(const StepParts& parts);

}  // namespace thimble
