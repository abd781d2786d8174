// Parses the words of a command line according to the table of a Command. Errors are UsageErrors
// that state what was expected and what was found.
//
//   --key value   --key=value   -k value   -kvalue   --flag   FILE
//   -3 (a value)   - (stdin)   -- (ends the options)
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

// Values of options and arguments by name ("top-k", "MODEL"), including defaults. A name that the
// command does not declare is a bug and throws std::logic_error.
class Arguments {
 public:
  explicit Arguments(const Command& command);

  bool takes(std::string_view name) const { return slots_.contains(name); }
  bool given(std::string_view name) const;  // on the command line
  bool flag(std::string_view name) const { return given(name); }

  // The value or the default. Without either, text() and path() return "", integer() and number()
  // throw std::logic_error. Numbers may end in a unit: 500k, 2M, 1G.
  const std::string& text(std::string_view name) const;
  std::filesystem::path path(std::string_view name) const { return text(name); }
  std::int64_t integer(std::string_view name, Range<std::int64_t> range = {}) const;
  double number(std::string_view name, Range<double> range = {}) const;
  const std::vector<std::string>& list(std::string_view name) const;

  std::string given_text() const;  // all values that were given, one line each: "--steps 20"

 private:
  friend class Parser;
  struct Slot {
    std::string label;  // name in messages: "--top-k" or "MODEL"
    std::string initial;
    std::vector<std::string> values;
  };
  const Slot& slot(std::string_view name) const;
  const std::string& value(std::string_view name) const;
  [[noreturn]] void refuse(std::string_view name, const std::string& expected) const;

  std::map<std::string, Slot, std::less<>> slots_;
};

// `words` are those after the name of the command.
Arguments parse(const Command& command, const std::vector<std::string>& words);

// Whether --help, -h or --help-all is among the words before "--". If it is, errors in other words
// are ignored.
enum class HelpRequest { none, usual, all };
HelpRequest help_request(const std::vector<std::string>& words);

}  // namespace thimble
