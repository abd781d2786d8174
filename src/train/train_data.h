// A run's data, opened: shards as they are, or text and chats turned into shards first.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/file_ops.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/signals.h"
#include "config/config.h"
#include "data/manifest.h"
#include "data/read_order.h"
#include "data/token_set.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

class Communicator;
struct Config;
struct LoaderSettings;

// Which data a run reads and how, kept in RUN/data.json so that `train --resume RUN` needs no other word.
struct DataSettings {
  std::filesystem::path data = {};      // text, chats, or a folder of shards
  std::filesystem::path val_data = {};  // empty: a part of `data`
  double val_fraction = 0.1;            // how much of it, where it is no folder of shards
  DataKind kind = DataKind::text;       // the same
  ReadOrder order = ReadOrder::shuffled;
  std::int64_t sub_batch_tokens = 8192;  // golf-mlx: MLX_MAX_MICROBATCH_TOKENS

  std::string to_json() const;
  static DataSettings from_json(const std::string& text, std::string_view name);
};

// How a loader hands out the rows of a run that is settled.
LoaderSettings loader_settings(const Config& config, const DataSettings& source, const Communicator& ranks);

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

// A tokenizer made for the data at hand: `--tokenizer bpe:4096` or `sentencepiece:1024`.
struct TokenizerSpec {
  TokenizerKind kind;
  TokenId vocab_size;

  // Nothing if the text is not of the form KIND:N. A number that no vocabulary can have is an Error.
  static std::optional<TokenizerSpec> parse(std::string_view text);
};

// Learned from the training inputs: of JSON from its texts or contents, not from its punctuation. Chats bring the
// role tokens.
std::unique_ptr<Tokenizer> learn_tokenizer(const TokenizerSpec& spec, const DataSettings& data,
                                           const ProgressOutput& progress, const Interrupt& interrupt);

}  // namespace thimble
