// The environment variables of train_gpt_mlx.py and train_gpt.py, and what each becomes here: one table, from which
// `thimble golf` reads its settings and `thimble golf --list-env` prints its documentation.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config_builder.h"

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

}  // namespace thimble
