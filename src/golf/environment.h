// The environment variables of train_gpt_mlx.py and train_gpt.py, and what each becomes here: one table, from which
// `thimble golf` reads its settings and `thimble golf --list-env` prints its documentation.
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

enum class VariableType { text, integer, number, flag };

struct GolfVariable {
  std::string_view name;
  VariableType type;
  std::string_view key;  // of ours that it sets as it is; empty: golf itself knows what to do with it
  std::string_view mlx,
      torch;  // what it is where it is not set, as typed; kUnknown: the script does not know it
  std::string_view meaning;  // begins with "nothing" if it has no effect here

  std::string_view initial(GolfScript script) const { return script == GolfScript::mlx ? mlx : torch; }
  bool does_nothing() const { return meaning.starts_with("nothing"); }
};
inline constexpr std::string_view kUnknown = "-";

std::span<const GolfVariable> golf_variables();
std::string golf_variables_text();  // for people

// The variables of the process, or of a test.
using Variables = std::map<std::string, std::string, std::less<>>;

class GolfEnvironment {
 public:
  GolfEnvironment(GolfScript script, Variables variables)
      : script_(script), variables_(std::move(variables)) {}

  GolfScript script() const { return script_; }
  bool is_set(std::string_view name) const { return variables_.contains(name); }

  // The value, or what the script has where it is not set. Something else than the type is an Error that names the
  // variable. Numbers are read as Python reads them: " 20_000 " is one.
  std::string text(std::string_view name) const;
  std::int64_t integer(std::string_view name) const;
  double number(std::string_view name) const;
  bool flag(std::string_view name) const;
  std::vector<std::string> list(std::string_view name) const;  // by commas, empty parts left out

  // What is set and has a key of ours, into the settings: stronger than a preset, weaker than flags.
  void apply(ConfigBuilder& settings) const;

  std::vector<std::pair<std::string, std::string>> known() const;  // that are set, in the table's order
  std::vector<std::string> without_effect() const;  // a sentence for each that is set and does nothing
  std::vector<std::string> suspects() const;        // a sentence for each that looks like one mistyped

 private:
  GolfScript script_;
  Variables variables_;
};

// What a golf run is, from the environment and the flags.
struct GolfRequest {
  GolfScript script = GolfScript::mlx;
  bool plus = false;  // with the techniques of golf-plus
  Variables environment;
  std::function<void(ConfigBuilder&)> flags = {};  // settings on top of the environment
};

struct GolfSettings {
  GolfScript script = GolfScript::mlx;
  bool plus = false;
  Config config;
  std::filesystem::path data, tokenizer, out;
  std::string data_text, tokenizer_text;  // as they were spelled: for the log
  std::string run_id;
  std::int64_t train_log_every = 0, val_batch_tokens = 0;  // of one validation batch
  std::int64_t train_batch_tokens = 0;                     // as asked for: what is read may be a little less
  std::int64_t grad_accum_steps = 8, sub_batch_tokens = 0, val_batch_size = 0;
  int ranks = 1;                                                 // that train together
  double max_wallclock_seconds = 0;                              // as asked for
  std::vector<std::string> keep_f32;                             // patterns
  std::vector<std::pair<std::string, std::string>> environment;  // known variables that were set
  std::vector<std::string> notes, warnings;                      // for people: not part of the log

  std::filesystem::path log_file() const { return out / (run_id + ".txt"); }
  std::filesystem::path run_folder() const { return out / run_id; }
  // Where theirs writes it: beside the log, or (train_gpt.py) in the current folder.
  std::filesystem::path raw_model() const;
  std::filesystem::path int8_model() const;
  std::filesystem::path artifact() const { return out / (run_id + ".thimble"); }
  std::int64_t microbatch_tokens() const { return train_batch_tokens / grad_accum_steps; }
};

// Settings that the scripts refuse are refused, in their words where those are clear. What needs the files (the
// tokenizer's size, the data) is checked by golf/run.h.
GolfSettings golf_settings(const GolfRequest& request);

}  // namespace thimble
