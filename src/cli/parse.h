// From the words of a command line to Arguments, as a Command's table says. Everything wrong is a UsageError
// that says what was expected and what was found.
//
//   --key value   --key=value   -k value   -kvalue   --flag   FILE   -3 (a value)   - (stdin)   -- ends
//   options
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cli/option.h"

namespace thimble {

template <class T>
struct Range {
  T least = std::numeric_limits<T>::lowest();
  T most = std::numeric_limits<T>::max();
};

// What was given, with defaults filled in. Options are asked for by name ("top-k"), arguments by theirs
// ("MODEL"). Asking for a name that the command does not declare is a bug and throws std::logic_error.
class Arguments {
 public:
  explicit Arguments(const Command& command);

  bool takes(std::string_view name) const { return slots_.contains(name); }
  bool given(std::string_view name) const;  // on the command line, not by default
  bool flag(std::string_view name) const { return given(name); }

  // The value, else the default, else "" (text, path) or a bug (integer, number: ask given() first).
  const std::string& text(std::string_view name) const;
  std::filesystem::path path(std::string_view name) const { return text(name); }
  std::int64_t integer(std::string_view name, Range<std::int64_t> range = {}) const;
  double number(std::string_view name, Range<double> range = {}) const;
  const std::vector<std::string>& list(std::string_view name) const;

  std::string spoken() const;  // everything that was given, a line each: "--steps 20"

 private:
  friend class Parser;
  struct Slot {
    std::string label;  // how messages call it: "--top-k" or "MODEL"
    std::string initial;
    std::vector<std::string> values;
  };
  const Slot& slot(std::string_view name) const;
  const std::string& value(std::string_view name) const;

  std::map<std::string, Slot, std::less<>> slots_;
};

// `words`: what follows the command's name.
Arguments parse(const Command& command, const std::vector<std::string>& words);

// Is there a --help or -h among the words, before any "--"? Then nothing else matters, not even errors.
bool asks_for_help(const std::vector<std::string>& words);

}  // namespace thimble
