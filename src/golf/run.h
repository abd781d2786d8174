// A golf run, from the first line of its log to the last: training as train/train.h does it, then what the scripts do at
// the end. The raw model and the int8+zlib file are written, the latter is read back from the disk, dequantised and
// validated again; beside them stand our own checkpoint (in OUT_DIR/RUN_ID) and artifact (OUT_DIR/RUN_ID.thimble).
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
  GolfLog::Print print;  // the console's lines
  const Log& log;        // what is not part of theirs: notes and warnings
  const Interrupt& interrupt;
  std::shared_ptr<DeviceRuntime> device = cpu_runtime();
  std::shared_ptr<Communicator> ranks = single_rank();  // the first alone logs and writes
  std::shared_ptr<DeviceCommunicator> gpus = {};
  bool force = false;            // outputs of the same RUN_ID are replaced
  std::uint64_t code_bytes = 0;  // for train_gpt.py's "Code size"
  std::function<double()> clock = seconds_now;
};

struct GolfResult {
  TrainResult training;
  std::optional<Score> roundtrip;  // of the int8 file; not there if training was interrupted or diverged
};

GolfResult run_golf(const GolfSettings& golf, const GolfContext& context);

// The end of a golf run: files, and what they score when they are read back.
struct GolfFinish {
  const GolfSettings& golf;
  const GolfContext& context;
  const Tokenizer& tokenizer;
  const TokenSet& val;
  std::filesystem::path checkpoint;  // the last one
  DType compute;
  GolfLines& lines;
  GolfLog& log;
  FileOps& ops;
};

// What the int8 file scores.
Score finish_golf(const GolfFinish& finish);

}  // namespace thimble
