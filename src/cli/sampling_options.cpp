#include "cli/sampling_options.h"

#include "cli/parse.h"

namespace thimble {

namespace {

constexpr double kLargest = 1000;  // of numbers that have no limit of their own

float number(const Arguments& arguments, std::string_view name, Range<double> range) {
  return static_cast<float>(arguments.number(name, range));
}

}  // namespace

std::vector<Option> with_sampling_options(std::vector<Option> own) {
  std::vector<Option> options = {
      {.name = "temperature", .value = "F", .initial = "0.8", .help = "0: always the likeliest"},
      {.name = "greedy", .help = "the same as --temperature 0"},
      {.name = "top-k", .value = "N", .initial = "0", .help = "only the N likeliest; 0: all"},
      {.name = "top-p", .value = "F", .initial = "1", .help = "only the likeliest that together reach F"},
      {.name = "min-p",
       .value = "F",
       .initial = "0",
       .help = "only those at least F times as likely as the likeliest"},
      {.name = "repeat-penalty",
       .value = "F",
       .initial = "1",
       .help = "makes what was said lately less likely; 1: off"},
      {.name = "repeat-last-n", .value = "N", .initial = "64", .help = "how many tokens are lately; -1: all"},
      {.name = "frequency-penalty",
       .value = "F",
       .initial = "0",
       .help = "taken off a token's logit each time it was generated"},
      {.name = "presence-penalty",
       .value = "F",
       .initial = "0",
       .help = "taken off a token's logit once it was generated"},
      common::seed()};
  options.insert(options.end(), own.begin(), own.end());
  return options;
}

SamplingOptions sampling_from(const Arguments& arguments) {
  SamplingOptions options;
  options.temperature =
      arguments.flag("greedy") ? 0 : number(arguments, "temperature", {.least = 0, .most = kLargest});
  options.top_k = arguments.integer("top-k", {.least = 0});
  options.top_p = number(arguments, "top-p", {.least = 0, .most = 1});
  options.min_p = number(arguments, "min-p", {.least = 0, .most = 1});
  options.repetition_penalty = number(arguments, "repeat-penalty", {.least = 0.01, .most = kLargest});
  options.repeat_last_n = arguments.integer("repeat-last-n", {.least = -1});
  options.frequency_penalty = number(arguments, "frequency-penalty", {.least = -kLargest, .most = kLargest});
  options.presence_penalty = number(arguments, "presence-penalty", {.least = -kLargest, .most = kLargest});
  options.seed = static_cast<std::uint64_t>(arguments.integer("seed", {.least = 0}));
  return options;
}

}  // namespace thimble
