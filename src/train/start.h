// What ranks settle before a run's model is made: how it computes, and that all have its data.
#pragma once

#include "train/run_folder.h"
#include "train/train.h"
#include "train/train_data.h"

namespace thimble {

// The request's config with what was left to the machine (dtype, micro-batch) written down, so that the run goes on with
// it anywhere. Every rank asks its own machine; the smallest micro-batch fits all.
Config settled_on_all(const TrainRequest& request);

// Rank 0 opens the data first: it may have to make it. Then the others do, who find it made.
TrainData open_on_all(const TrainRequest& request, const RunFolder& folder, FileOps& ops, const Log& log,
                      const ProgressOutput& progress, const Interrupt& interrupt);

}  // namespace thimble
