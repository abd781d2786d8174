// What the words after `thimble train` ask for: settings, data and tokenizer.
#pragma once

#include <functional>
#include <memory>

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

class Arguments;

// What is wrong with a setting on the command line is wrong usage.
void as_usage(const std::function<void()>& action);

// --init names a model; the setting of that name is spoken as --set init=...
inline bool is_flag(const Key& key) {
  return key.name != "init";
}

ConfigBuilder settings_from(const Arguments& arguments);

// --set alone.
void put_assignments(const Arguments& arguments, ConfigBuilder& settings);

// --set and a flag for every key, and what was said with them.
std::vector<Option> setting_options();
void put_settings(const Arguments& arguments, ConfigBuilder& settings);

// On top of a config that is resolved already, as --resume does: --set and the flags.
Config changed_by(const Arguments& arguments, Config config);

DataSettings data_from(const Arguments& arguments, const std::string& preset);

// --tokenizer, else that of the shards, else that of the model of --init (may be null), else bytes.
std::shared_ptr<const Tokenizer> tokenizer_from(const Arguments& arguments, const DataSettings& data,
                                                const ModelFile* init, Console& console,
                                                const Interrupt& interrupt);

// How many tokens it will have, before anything is learned; nothing where neither it nor the data are named.
std::optional<std::int64_t> vocabulary_from(const Arguments& arguments, const std::string& preset,
                                            const ModelFile* init);

// Commands that several ranks run together: `mpirun -n 4 thimble train ...`.
// --rank-timeout: how long a rank waits for another.
Option rank_timeout_option();

// The ranks that mpirun or srun started, joined; one where this process was started by itself. What fails here fails
// before ranks can talk: the first one says it, the others some seconds later, if they still can.
std::shared_ptr<Communicator> ranks_from(const Arguments& arguments);

// Ranks that were told different things do not get far: said at once, and by name.
void check_same_command(Communicator& ranks, const Arguments& arguments);

// What is said before ranks have met is said by the first, who ends the others; a rank that alone has something to say
// speaks some seconds later.
void let_first_rank_speak();

// As tokenizer_from; a tokenizer that is learned is learned by the first rank, for all.
std::shared_ptr<const Tokenizer> tokenizer_on_all(Communicator& ranks, const Arguments& arguments,
                                                  const DataSettings& data, const ModelFile* init,
                                                  Console& console, const Interrupt& interrupt);

// What `train` and `golf` end with.
int exit_code(const TrainResult& result);

}  // namespace thimble
