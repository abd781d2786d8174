// Trains the runs of a sweep: each is a process of this program, several of them side by side.
//
// The folder of a sweep contains results.jsonl (results.h), sweep.toml, sweep.json (jobs and
// threads), data/ (tokens shared by runs), runs/ (run folders), scores/ (of each document), logs/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file_ops.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/signals.h"
#include "sweep/plan.h"
#include "sweep/results.h"

namespace thimble {

struct SweepRun {
  std::string id;                       // VARIANT-SEED: the name of its folder and files
  std::vector<std::string> train = {};  // words of `thimble train`, without output, device and threads
  std::int64_t steps = 0;               // expected; 0: unknown
  std::int64_t val_tokens = 0;
  std::filesystem::path held_out = {};  // for packing; empty: the run has no validation data
  Json facts = {};                      // members of its line that are known before
};

struct SweepOptions {
  std::filesystem::path folder;
  int jobs = 1, threads = 1;  // threads of each run
  std::string device;         // as after --device
  SweepScore score = SweepScore::best;
  bool pack = false;
};

struct SweepCounts {
  std::size_t finished = 0, diverged = 0, failed = 0;
  bool interrupted = false;
};

// Trains, scores and packs each run and appends its line to `results`. A run that was interrupted
// continues from its checkpoint. A run that fails or diverges is recorded, and the others go on.
// When interrupted, stops the processes, which save their state.
SweepCounts run_sweep(const std::vector<SweepRun>& runs, const SweepOptions& options, ResultsFile& results,
                      FileOps& ops, const Log& log, const ProgressOutput& progress,
                      const Interrupt& interrupt);

// Runs `thimble WORDS` and returns its output. If it fails, throws an Error with its message.
std::string output_of(const std::vector<std::string>& words, const Interrupt& interrupt);

}  // namespace thimble
