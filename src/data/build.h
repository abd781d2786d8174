// From any text or chats to a data set: shards, manifest.json and the tokenizer, in one folder.
//
//   const BuildResult built = build_dataset({.inputs = {"books/"}, .tokenizer = tokenizer, .folder = "data/books"},
//                                           log, progress, &interrupt);
//
// All threads encode; the output depends on the inputs and the settings alone. A build that was stopped, by
// whatever means, goes on when it is asked for again, and ends with the same bytes. The manifest is written
// last: a folder that has one is complete. Memory stays small, however large the inputs are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/file_ops.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/signals.h"
#include "data/document.h"
#include "data/encode.h"
#include "data/manifest.h"
#include "data/shard.h"

namespace thimble {

// When the folder holds a data set, or an unfinished one of other inputs or settings.
enum class IfBuilt {
  refuse,   // an error
  reuse,    // the same inputs and settings: it is taken as it is. Else replace
  replace,  // it goes
};

struct BuildRequest {
  std::vector<std::string> inputs = {};      // see data/records.h
  std::vector<std::string> val_inputs = {};  // all for validation; then the next two must be 0
  std::uint64_t val_documents = 0;           // the last ones
  double val_fraction = 0;                   // of documents, by their content (see data/survey.h)
  std::shared_ptr<const Tokenizer> tokenizer = {};
  std::filesystem::path folder = {};
  std::string name = "data";  // shards are NAME_train_000000.bin
  ReadOptions read = {};
  EncodeLimits limits = {};  // of conversations
  bool dedup = false;
  bool skip_bad = false;
  std::uint64_t shard_tokens = kDefaultShardTokens;
  IfBuilt if_built = IfBuilt::refuse;
};

struct BuildResult {
  Manifest manifest;
  bool reused = false;   // it was there already
  bool resumed = false;  // an unfinished build went on
  double seconds = 0;
};

BuildResult build_dataset(const BuildRequest& request, const Log& log, const ProgressOutput& progress,
                          const Interrupt* interrupt = nullptr);
// The same, on a disk that may break.
BuildResult build_dataset(const BuildRequest& request, FileOps& ops, const Log& log,
                          const ProgressOutput& progress, const Interrupt* interrupt);

}  // namespace thimble
