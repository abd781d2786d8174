// Turns the arguments of `thimble train` into settings, data and a tokenizer.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "base/signals.h"
#include "cli/console.h"
#include "cli/option.h"
#include "cli/parse.h"
#include "config/builder.h"
#include "dist/communicator.h"
#include "formats/model_file.h"
#include "train/train_data.h"

namespace thimble {

struct TrainResult;

inline constexpr std::string_view kDefaultPreset = "quick";

// Runs `action` and turns an Error into a UsageError, for settings given on the command line.
void as_usage(const std::function<void()>& action);

// The key `init` has no flag, because --init names a model; use --set init=...
inline bool is_flag(const Key& key) {
  return key.name != "init";
}

// `preset` is used unless the arguments name another one or a config file.
ConfigBuilder settings_from(const Arguments& arguments, std::string_view preset = kDefaultPreset);

// What `train` chooses by itself (train/run_plan.h): everything, unless the user chose a preset, a
// model to start from or a length; the length only, for --minutes with one of these.
enum class Planned { nothing, length, everything };
Planned planned_by(const Arguments& arguments, const ConfigBuilder& settings);

double minutes_from(const Arguments& arguments);  // --minutes

// Applies --set only.
void put_assignments(const Arguments& arguments, ConfigBuilder& settings);

// A setting whose flag is listed by --help, not only by --help-all, and its heading there.
struct BasicSetting {
  std::string_view key, group;
};

// Returns a flag for every key. Help shows the defaults of `preset`; flags not in `basic` are
// advanced.
std::vector<Option> setting_options(std::string_view preset, std::span<const BasicSetting> basic = {});
// Applies --set and the flags.
void put_settings(const Arguments& arguments, ConfigBuilder& settings);

// Applies --set and the flags to a resolved config, for --resume.
Config changed_by(const Arguments& arguments, Config config);

// Options of commands that read text or chats.
Option documents_option();
Option text_field_option();
Option assistant_option();
DocumentSplit documents_from(const Arguments& arguments);
// The values of all three.
ReadOptions read_options_from(const Arguments& arguments);

// --data and --val-data. Pipes are copied to temporary files, which exist as long as this object.
struct NamedData {
  SpooledInput data, val_data;

  explicit NamedData(const Arguments& arguments, const Interrupt* interrupt = nullptr)
      : data(arguments.text("data"), interrupt), val_data(arguments.text("val-data"), interrupt) {}
};

DataSettings data_from(const Arguments& arguments, const std::string& preset, const NamedData& named);

// The tokenizer to train: that of --tokenizer KIND:N. Without --tokenizer, chats get a BPE of
// --vocab-size tokens, which the preset microgpt sets to 4096. nullopt: an existing tokenizer.
std::optional<TokenizerSpec> spec_from(const Arguments& arguments, const ConfigBuilder& settings,
                                       const DataSettings& data);

// The layout of chats for this run: that of the --init model if it has another one than thimble's,
// which the tokenizer must then be of; thimble's own otherwise.
std::string chat_layout_from(const DataSettings& data, const ModelFile* init);

// Trains the tokenizer of `spec`. Without it: the tokenizer given by --tokenizer, else that of the
// shards, else that of the --init model (throws if it has none); without --init the bytes
// tokenizer.
std::shared_ptr<const Tokenizer> tokenizer_from(const Arguments& arguments,
                                                const std::optional<TokenizerSpec>& spec,
                                                const DataSettings& data, const ModelFile* init,
                                                Console& console, const Interrupt& interrupt);

// For --dry-run: the vocabulary size of that tokenizer, which may not be trained yet. Returns
// nullopt if neither a tokenizer nor data are given. Throws if --data has no document, as training
// would.
std::optional<std::int64_t> vocabulary_from(const Arguments& arguments, const ConfigBuilder& settings,
                                            const std::string& preset, const ModelFile* init);

// --rank-timeout, for commands that several ranks run together: `mpirun -n 4 thimble train ...`.
Option rank_timeout_option();

// Joins the ranks that mpirun or srun started; a process started alone is a single rank. If joining
// fails, rank 0 reports the error at once and the other ranks after a few seconds.
std::shared_ptr<Communicator> ranks_from(const Arguments& arguments);

// Throws on every rank if the ranks were started with different versions or command lines.
void check_same_command(Communicator& ranks, const Arguments& arguments);

// For errors that occur before the ranks are connected: ranks other than 0 sleep for 5 seconds
// here, so that an error common to all ranks is normally printed once, by rank 0, which ends the
// job.
void let_first_rank_report();

// Like tokenizer_from(); rank 0 trains a new tokenizer and shares it.
std::shared_ptr<const Tokenizer> tokenizer_on_all(Communicator& ranks, const Arguments& arguments,
                                                  const std::optional<TokenizerSpec>& spec,
                                                  const DataSettings& data, const ModelFile* init,
                                                  Console& console, const Interrupt& interrupt);

// The exit code of `train` and `golf`.
int exit_code(const TrainResult& result);

}  // namespace thimble
