// A run's data, opened: shards as they are, or text and chats turned into shards first.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/file_ops.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/progress.h"
#include "data/token_set.h"
#include "model/config.h"
#include "tokenizer/tokenizer.h"
#include "train/data_settings.h"

namespace thimble {

struct TrainData {
  TokenSet train;
  std::optional<TokenSet> val;             // a folder of shards need not have any
  std::uint64_t documents = 0, bytes = 0;  // of the training split; 0: not known
  DataKind kind = DataKind::text;

  std::string digest() const;  // of all tokens
};

// What lies in the folder that shards of text are made in.
enum class BuiltData {
  is_remade,    // unless it comes from the same inputs and settings: a new run
  is_the_data,  // whatever became of its sources: a run goes on
  must_match,   // the same, and the sources that were named must give the same shards
};

struct OpenDataRequest {
  const DataSettings& settings;
  std::shared_ptr<const Tokenizer> tokenizer;
  LossOn loss_on = LossOn::assistant;
  std::filesystem::path build_in;  // where shards are made of text
  BuiltData built = BuiltData::is_remade;
};

TrainData open_train_data(const OpenDataRequest& request, FileOps& ops, const Log& log,
                          const ProgressOutput& progress, const Interrupt& interrupt);

}  // namespace thimble
