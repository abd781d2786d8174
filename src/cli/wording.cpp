#include "cli/wording.h"

#include <fmt/format.h>

#include "base/joined.h"

namespace thimble {

std::string value_of(const Option& option) {
  if (option.choices.empty()) return std::string(option.value);
  return joined(option.choices, "|");
}

std::string described(const Option& option) {
  std::string text(option.help);
  if (option.required) text += " (required)";
  if (option.repeated) text += " (may be repeated)";
  if (!option.initial.empty()) text += fmt::format(" (default: {})", option.initial);
  return text;
}

std::string usage_of(const Argument& argument) {
  std::string name = argument.choices.empty() ? std::string(argument.name) : joined(argument.choices, "|");
  switch (argument.count) {
    case Count::one:
      return name;
    case Count::optional:
      return fmt::format("[{}]", name);
    case Count::many:
      return fmt::format("{}...", name);
    case Count::any:
      return fmt::format("[{}]...", name);
  }
  return name;
}

std::string usage_of(const Command& command) {
  std::string line = fmt::format("thimble {}", command.name);
  for (const Argument& argument : command.arguments) line += " " + usage_of(argument);
  for (const Option& option : command.options)
    if (option.required)
      line += option.letter ? fmt::format(" -{} {}", option.letter, value_of(option))
                            : fmt::format(" --{} {}", option.name, value_of(option));
  return line + " [options]";
}

}  // namespace thimble
