#include "serve/sampling_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "base/number.h"
#include "serve/api_error.h"
#include "serve/fields.h"

namespace thimble {

namespace {

// Far beyond what check_sampling allows, and still a float.
float as_float(double value) {
  return static_cast<float>(std::clamp(value, -1e30, 1e30));
}

float number(Fields& fields, std::string_view name, float absent) {
  const auto value = fields.number(name);
  return value ? as_float(*value) : absent;
}

std::uint64_t read_seed(Fields& fields, std::optional<std::uint64_t> absent) {
  const auto seed = fields.integer("seed");
  if (seed && *seed != -1) return static_cast<std::uint64_t>(*seed);
  if (!seed && absent) return *absent;
  std::random_device entropy;
  return std::uint64_t{entropy()} << 32 | entropy();
}

// {"50256": -100}
std::vector<std::pair<TokenId, float>> read_bias(Fields& fields) {
  std::vector<std::pair<TokenId, float>> biases;
  const Json* given = fields.find("logit_bias");
  if (!given) return biases;
  if (!given->is_object())
    throw bad_field("logit_bias",
                    fmt::format("logit_bias must be an object of token ids, got {}", kind_of(*given)));
  for (const auto& [key, value] : given->as_object()) {
    const auto id = number_in<TokenId>(key);
    if (!id)
      throw bad_field("logit_bias",
                      fmt::format("logit_bias must name token ids, got '{}'", key.substr(0, 40)));
    if (!value.is_number())
      throw bad_field("logit_bias", fmt::format("logit_bias must hold numbers, got {}", kind_of(value)));
    biases.emplace_back(*id, as_float(value.as_double()));
  }
  return biases;
}

// llama.cpp and vLLM call it differently.
float read_repetition(Fields& fields, float absent) {
  const auto ours = fields.number("repeat_penalty"), theirs = fields.number("repetition_penalty");
  if (ours && theirs && *ours != *theirs)
    throw bad_field("repeat_penalty",
                    fmt::format("repeat_penalty and repetition_penalty differ: {} and {}", *ours, *theirs));
  if (ours) return as_float(*ours);
  return theirs ? as_float(*theirs) : absent;
}

}  // namespace

SamplingOptions read_sampling(Fields& fields, const ServedModel& model) {
  const SamplingOptions& defaults = model.defaults;
  SamplingOptions options = defaults;
  options.temperature = number(fields, "temperature", defaults.temperature);
  options.top_p = number(fields, "top_p", defaults.top_p);
  options.min_p = number(fields, "min_p", defaults.min_p);
  options.top_k = fields.integer("top_k").value_or(defaults.top_k);
  if (options.top_k == -1) options.top_k = 0;  // vLLM's "all"
  options.repetition_penalty = read_repetition(fields, defaults.repetition_penalty);
  options.repeat_last_n = fields.integer("repeat_last_n").value_or(defaults.repeat_last_n);
  options.frequency_penalty = number(fields, "frequency_penalty", defaults.frequency_penalty);
  options.presence_penalty = number(fields, "presence_penalty", defaults.presence_penalty);
  options.logit_bias = read_bias(fields);
  options.seed = read_seed(fields, model.seed);
  return options;
}

std::vector<std::string> read_stops(Fields& fields) {
  const Json* given = fields.find("stop");
  if (!given) return {};
  if (given->is_string()) return {given->as_string()};
  if (!given->is_array())
    throw bad_field("stop",
                    fmt::format("stop must be a string or an array of strings, got {}", kind_of(*given)));
  std::vector<std::string> stops;
  for (const Json& item : given->as_array()) {
    if (!item.is_string())
      throw bad_field("stop", fmt::format("stop must hold strings, got {}", kind_of(item)));
    stops.push_back(item.as_string());
  }
  return stops;
}

}  // namespace thimble
