// A golf run: training with train/train.h, then the final steps of the scripts. These write the raw
// model and the int8+zlib file, read that file back, dequantize and validate it. A golf run also
// writes a thimble run folder (OUT_DIR/RUN_ID) and an artifact (OUT_DIR/RUN_ID.thimble).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/signals.h"
#include "data/token_set.h"
#include "eval/score.h"
#include "golf/environment.h"
#include "golf/log.h"
#include "tensor/device.h"
#include "tokenizer/tokenizer.h"
#include "train/train.h"

namespace thimble {

struct GolfContext {
  GolfLog::Print print;  // prints a line of the golf log
  const Log& log;        // for notes and warnings, which are not part of the golf log
  const Interrupt& interrupt;
  std::shared_ptr<DeviceRuntime> device = cpu_runtime();
  std::shared_ptr<Communicator> ranks = single_rank();  // only the first rank logs and writes
  std::shared_ptr<DeviceCommunicator> gpus = {};
  bool force = false;            // replace outputs of the same RUN_ID; resume: allow changed settings
  bool resume = false;           // continue the run of this RUN_ID, or only write its missing files
  std::uint64_t code_bytes = 0;  // for train_gpt.py's "Code size"
  std::function<double()> clock = seconds_now;
};

struct GolfResult {
  TrainResult training;
  std::optional<Score> roundtrip;  // of the int8 file; nullopt if the run was interrupted or diverged
  bool interrupted = false;        // in training or afterwards; can be resumed
};

GolfResult run_golf(const GolfSettings& golf, const GolfContext& context);

// The inputs of finish_golf(), the end of a golf run.
struct GolfFinish {
  const GolfSettings& golf;
  const GolfContext& context;
  const Tokenizer& tokenizer;
  const TokenSet& val;
  std::filesystem::path checkpoint;  // the final checkpoint
  DType compute;
  GolfLines& lines;
  GolfLog& log;
  FileOps& ops;
};

// Writes all output files. Returns the score of the int8 file.
Score finish_golf(const GolfFinish& finish);

}  // namespace thimble
