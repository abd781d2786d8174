// One optimizer step: reads a batch, runs forward and backward for each micro-batch, then updates
// the weights.
//
// The loss is the sum over the step's targets divided by their number. It does not depend on how
// the step is split into micro-batches.
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
  UpdateSizes* sizes = nullptr;  // filled in unless null
};

struct StepResult {
  double loss = 0;                       // nats per target
  double grad_norm = 0;                  // before clipping
  bool updated = false;                  // false if loss or norm is not finite
  bool skipped = false;                  // no update because the loss scale was too high; training continues
  double loss_scale = 0;                 // of the next step; 0: no loss scaling
  std::int64_t tokens = 0, targets = 0;  // tokens read, and those with a loss
  std::uint64_t bytes = 0;               // bytes of text in the targets
  double input_seconds = 0;              // spent waiting for data
  std::string warning = {};              // from the loader
};

// The objects a step works on; all must outlive the runner.
struct StepParts {
  const Config& config;
  const Context& context;
  Model& model;
  Optimizer& optimizer;
  BatchLoader& loader;
  const ByteTable& bytes;
  Communicator& ranks;
  DeviceCommunicator* gpus = nullptr;  // multi-GPU training only
};

class StepRunner {
 public:
  virtual ~StepRunner() = default;

  virtual StepResult run(const StepRequest& request) = 0;
  // Warms up everything that is created on first use (programs, plans, memory pages): runs forward
  // and backward of one micro-batch of each size, without an update and without consuming data.
  virtual void prime(int qat_bits) = 0;
  // Makes the program of the next step, so that a validation before it can use its memory.
  virtual void reserve(int) {}

  // fetch() copies weights and optimizer state from the device into host memory; call it before
  // reading them there. send() copies them back after they were changed. Both do nothing on the
  // CPU.
  virtual void fetch() {}
  virtual void fetch_weights() {}  // weights only; needs no communication between ranks
  virtual void send() {}
};

// Shared by the runners of all devices.

// Every micro-batch of a step has a different seed, across all ranks.
std::uint64_t dropout_seed(const TrainConfig& config, const Communicator& ranks, std::int64_t step,
                           std::size_t micro_batch);
std::uint64_t bytes_of_targets(const Rows& rows, const ByteTable& bytes);
// Replaces the loss and bytes of this rank with their sums over all ranks.
void sum_over_ranks(Communicator& ranks, std::int64_t step, StepResult& result);

// Chooses the runner by the context's device.
std::unique_ptr<StepRunner> make_step_runner(const StepParts& parts);

// Steps on a GPU: weights, gradients and optimizer state are in its memory (optim/device_step.h).
std::unique_ptr<StepRunner> make_gpu_step(const StepParts& parts);

}  // namespace thimble
