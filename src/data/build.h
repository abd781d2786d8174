// Builds a data set from texts or chats: one folder with shards, manifest.json and the tokenizer.
//
//   const BuildResult built = build_dataset(
//       {.inputs = {"books/"}, .tokenizer = tokenizer, .folder = "data/books"},
//       log, progress, &interrupt);
//
// Encoding uses all threads; the output depends only on the inputs and the settings. Calling
// build_dataset() again after an interrupted or crashed build resumes it and produces the same
// bytes. The manifest is written last, so a folder that has one is complete. Memory use does not
// grow with the size of the inputs, except for two bits per document.
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

// What to do if the folder contains a data set or an unfinished build of other inputs or settings.
enum class IfBuilt {
  refuse,   // an error
  reuse,    // return an existing data set of the same inputs and settings, otherwise rebuild
  replace,  // delete the existing data set and rebuild
};

struct BuildRequest {
  std::vector<std::string> inputs = {};      // paths, see data/records.h
  std::vector<std::string> val_inputs = {};  // if not empty, the next two must be 0
  std::uint64_t val_documents = 0;           // use the last N documents for validation
  double val_fraction = 0;                   // chosen by content (see data/survey.h)
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
  bool reused = false;                 // the folder already contained this data set
  bool resumed = false;                // continued an unfinished build
  std::vector<LeftOut> left_out = {};  // files that are neither text nor chats of this kind
  double seconds = 0;
};

BuildResult build_dataset(const BuildRequest& request, const Log& log, const ProgressOutput& progress,
                          const Interrupt* interrupt = nullptr);
// The same with a caller-supplied file system, which tests use to inject faults.
BuildResult build_dataset(const BuildRequest& request, FileOps& ops, const Log& log,
                          const ProgressOutput& progress, const Interrupt* interrupt);

// Whether the inputs, which include those for validation, have the files that the data set was
// built from.
bool same_sources(const Manifest& manifest, const std::vector<std::string>& inputs,
                  const Interrupt* interrupt = nullptr);

// Whether the input has a file, other than an empty one, that the training split was built from.
bool shares_training_text(const Manifest& manifest, const std::string& input,
                          const Interrupt* interrupt = nullptr);

}  // namespace thimble
