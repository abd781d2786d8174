#include "cli/option.h"

#include <algorithm>

namespace thimble {

namespace common {

Option json() {
  return {.name = "json", .help = "print the result as one JSON object", .common = true};
}
Option quiet() {
  return {.name = "quiet", .letter = 'q', .help = "no progress, only warnings and errors", .common = true};
}
Option force() {
  return {.name = "force", .letter = 'f', .help = "overwrite outputs that exist", .common = true};
}
Option threads() {
  return {
      .name = "threads", .value = "N", .help = "CPU threads (default: all that may be used)", .common = true};
}
Option device() {
  return {.name = "device",
          .initial = "auto",
          .help = "where to compute",
          .choices = {"auto", "cpu", "cuda"},
          .common = true};
}
Option dtype() {
  return {.name = "dtype",
          .initial = "auto",
          .help = "number format of weights and activations in the computation; f16 on cuda alone",
          .choices = {"auto", "f32", "bf16", "f16"},
          .common = true};
}
Option seed() {
  return {.name = "seed", .value = "N", .initial = "1337", .help = "of every random number", .common = true};
}

}  // namespace common

std::vector<Option> options_of(const Command& command) {
  std::vector<Option> options = command.options;
  std::stable_partition(options.begin(), options.end(), [](const Option& option) { return !option.common; });
  options.push_back({.name = "help", .letter = 'h', .help = "show this text", .common = true});
  return options;
}

}  // namespace thimble
