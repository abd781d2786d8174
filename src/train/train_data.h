// Opens the data of a run: shards are used directly, text and chats are first turned into shards.
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
#include "data/records.h"
#include "data/text_files.h"
#include "data/token_set.h"
#include "eval/memorization.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

class Communicator;
struct Config;
struct LoaderSettings;

// Which data a run reads and how. Stored in RUN/data.json, so `train --resume RUN` needs no --data.
struct DataSettings {
  std::filesystem::path data = {};      // text, chats, or a folder of shards
  std::filesystem::path val_data = {};  // empty: validate on a part of `data`
  double val_fraction = 0.1;            // of the bytes; 0: none; ignored for a folder of shards
  DataKind kind = DataKind::text;       // ignored for a folder of shards
  DocumentSplit documents = DocumentSplit::end_of_text;  // ignored for a folder of shards
  std::string text_field = "text";  // of JSON, CSV and Parquet; ignored for a folder of shards
  // The participant of messengers' exports that the model becomes; empty: the likely one.
  std::string assistant = {};
  // Conversations of more tokens are left out; 0: none. Ignored for a folder of shards.
  std::int64_t longest_chat = 0;
  // Of chats as tokens. Ignored for a folder of shards.
  std::string layout = std::string(kRolesLayout);
  ReadOrder order = ReadOrder::shuffled;
  std::int64_t sub_batch_tokens = 8192;  // golf-mlx: MLX_MAX_MICROBATCH_TOKENS

  ReadOptions read_options() const;
  std::string to_json() const;
  static DataSettings from_json(const std::string& text, std::string_view name);
};

// The loader's settings; `config` must have micro_batch filled in.
LoaderSettings loader_settings(const Config& config, const DataSettings& source, const Communicator& ranks);

struct TrainData {
  TokenSet train;
  std::optional<TokenSet> val;             // nullopt if a folder of shards has no validation split
  std::uint64_t documents = 0, bytes = 0;  // of the training split; 0: unknown
  DataKind kind = DataKind::text;
  std::string layout = std::string(kRolesLayout);  // of chats

  std::string digest() const;  // of all tokens
};

// How to treat shards that already exist in `build_in`.
enum class BuiltData {
  is_remade,    // new run: rebuild, unless they come from the same inputs and settings
  is_the_data,  // resume: use them, even if their sources have changed or are gone
  must_match,   // resume with --data: use them, but check that --data gives the same shards
};

struct OpenDataRequest {
  const DataSettings& settings;
  std::shared_ptr<const Tokenizer> tokenizer;
  LossOn loss_on = LossOn::assistant;
  std::filesystem::path build_in;  // folder for shards built from text
  BuiltData built = BuiltData::is_remade;
};

TrainData open_train_data(const OpenDataRequest& request, FileOps& ops, const Log& log,
                          const ProgressOutput& progress, const Interrupt& interrupt);

// A tokenizer to be trained on the data: `--tokenizer bpe:4096` or `sentencepiece:1024`.
struct TokenizerSpec {
  TokenizerKind kind;
  TokenId vocab_size;

  // Returns nullopt if the text is not of the form KIND:N. Throws Error if N is out of range.
  static std::optional<TokenizerSpec> parse(std::string_view text);
};

// The run that a MODEL argument names: its folder, or that of a checkpoint in it. Empty if there is
// none.
std::filesystem::path run_named(const std::filesystem::path& model);

// Opens a folder of shards again, with the validation split of `val_data` if that is not empty.
TrainData open_shards(const std::filesystem::path& data, const std::filesystem::path& val_data,
                      const Tokenizer& tokenizer);
// The data that a run was trained on. Throws if its shards are missing.
TrainData open_data_of(const std::filesystem::path& run, const Tokenizer& tokenizer);

// For measure_memorization(); `data` and `interrupt` must outlive the result.
MemorizationData memorization_data(const TrainData& data, const ProgressOutput& progress,
                                   const Interrupt* interrupt);

// The held-out data of a run: its own shards, or the shards that it was trained and validated on.
std::filesystem::path held_out_data(const std::filesystem::path& run);

// Whether `data`, a text or chats, is or contains a text that the run was trained on.
bool is_training_data(const std::filesystem::path& run, const std::filesystem::path& data);

// Trains the tokenizer on the training inputs. From JSON records it uses the text or message
// contents, not the JSON syntax. Chat tokenizers include the role tokens.
std::unique_ptr<Tokenizer> learn_tokenizer(const TokenizerSpec& spec, const DataSettings& data,
                                           const ProgressOutput& progress, const Interrupt& interrupt);

}  // namespace thimble
