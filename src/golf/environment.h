// The environment variables of train_gpt_mlx.py and train_gpt.py, in one table that maps them to
// settings. `thimble golf` reads it, and `thimble golf --list-env` prints it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/builder.h"
#include "config/config.h"

namespace thimble {

enum class GolfScript { mlx, torch };  // train_gpt_mlx.py, train_gpt.py
std::string_view name_of(GolfScript script);

// rate: a number, where 0 is a rate (a key of 0 means lr). length and norm: an integer and a number
// where the scripts treat negative values as 0.
enum class VariableType { text, integer, number, flag, rate, length, norm };

struct GolfVariable {
  std::string_view name;
  VariableType type;
  std::string_view key;         // config key set to the same value; empty: handled by golf_settings()
  std::string_view mlx, torch;  // each script's default; kUnknown: the script does not read the variable
  std::string_view meaning;     // starts with "nothing" if it has no effect here

  std::string_view initial(GolfScript script) const { return script == GolfScript::mlx ? mlx : torch; }
  bool does_nothing() const { return meaning.starts_with("nothing"); }
};
inline constexpr std::string_view kUnknown = "-";

std::span<const GolfVariable> golf_variables();
std::string golf_variables_text();  // the table of --list-env

// Environment variables by name.
using Variables = std::map<std::string, std::string, std::less<>>;

class GolfEnvironment {
 public:
  GolfEnvironment(GolfScript script, Variables variables)
      : script_(script), variables_(std::move(variables)) {}

  GolfScript script() const { return script_; }
  bool is_set(std::string_view name) const { return variables_.contains(name); }

  // The value, or the script's default if it is not set. Throws an Error that names the variable if
  // the value does not have the requested type. Numbers are parsed as in Python, so " 20_000 " is
  // valid.
  std::string text(std::string_view name) const;
  std::int64_t integer(std::string_view name) const;
  double number(std::string_view name) const;
  double rate(std::string_view name) const;  // as the value of a key: kFrozen instead of 0
  bool flag(std::string_view name) const;
  std::vector<std::string> list(std::string_view name) const;  // split at commas, without empty parts

  // Applies all variables that are set and have a config key. They override presets; flags override
  // them.
  void apply(ConfigBuilder& settings) const;

  std::vector<std::pair<std::string, std::string>> known() const;  // variables that are set, in table order
  std::vector<std::string> without_effect() const;  // a sentence per set variable without effect
  std::vector<std::string> suspects() const;        // a sentence per variable that is probably mistyped

 private:
  GolfScript script_;
  Variables variables_;
};

// The inputs of golf_settings().
struct GolfRequest {
  GolfScript script = GolfScript::mlx;
  bool plus = false;  // use the golf-plus preset
  Variables environment;
  std::function<void(ConfigBuilder&)> flags = {};  // applied after the environment
};

struct GolfSettings {
  GolfScript script = GolfScript::mlx;
  bool plus = false;
  Config config;
  std::filesystem::path data, tokenizer, out;
  bool out_was_named = false;             // OUT_DIR or -o was given
  std::string data_text, tokenizer_text;  // the paths as given, for the log
  std::string run_id;
  bool run_id_was_named = false;  // by RUN_ID or --run-id; otherwise it is random
  std::int64_t train_log_every = 0, val_batch_tokens = 0;
  std::int64_t train_batch_tokens = 0;  // as requested; the batch may be smaller, see settle_batch()
  std::int64_t grad_accum_steps = 8, sub_batch_tokens = 0, val_batch_size = 0;
  int ranks = 1;
  double max_wallclock_seconds = 0;                              // as requested; 0 or less: no limit
  std::vector<std::string> keep_f32;                             // name patterns
  std::vector<std::pair<std::string, std::string>> environment;  // known variables that are set
  std::vector<std::string> notes, warnings;                      // printed, but not part of the golf log

  std::filesystem::path log_file() const { return out / (run_id + ".txt"); }
  std::filesystem::path run_folder() const { return out / run_id; }
  // Next to the log (mlx); in the folder that the user chose, else in the current folder as the
  // script does (torch).
  std::filesystem::path raw_model() const;
  std::filesystem::path int8_model() const;
  std::filesystem::path artifact() const { return out / (run_id + ".thimble"); }
  std::int64_t microbatch_tokens() const { return train_batch_tokens / grad_accum_steps; }
};

// Throws Error for settings that the scripts reject, with the script's message if that is clear.
// Checks that need files (tokenizer size, data) are in golf/run.h.
GolfSettings golf_settings(const GolfRequest& request);

}  // namespace thimble
