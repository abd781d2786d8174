#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace thimble {

namespace {

template <class Number>
void write_value(std::string& out, std::string_view name, std::string_view type, std::string_view help,
                 Number value) {
  out += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n{0} {3}\n", name, type, help, value);
}

}  // namespace

void Metrics::Histogram::add(double value) {
  const auto bound = std::ranges::lower_bound(kBounds, value);
  ++counts[static_cast<std::size_t>(bound - kBounds.begin())];
  sum += value;
}

void Metrics::Histogram::write(std::string& out, std::string_view name, std::string_view help) const {
  out += fmt::format("# HELP {0} {1}\n# TYPE {0} histogram\n", name, help);
  std::int64_t below = 0;
  for (std::size_t i = 0; i < kBounds.size(); ++i) {
    below += counts[i];
    out += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, kBounds[i], below);
  }
  below += counts.back();
  out += fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, below, sum);
}

void Metrics::count_request(std::string_view route, int status, double seconds) {
  const std::lock_guard lock(mutex_);
  ++requests_[{std::string(route), status}];
  duration_.add(seconds);
}

void Metrics::count_answer(const Usage& usage) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += usage.prompt_tokens;
  cached_tokens_ += usage.cached_tokens;
  generated_tokens_ += usage.generated_tokens;
  prompt_seconds_ += usage.prompt_seconds;
  decode_seconds_ += usage.decode_seconds;
  first_token_.add(usage.seconds_to_first_token());
}

std::string Metrics::text(const Engine& engine, int connections) const {
  const EngineStats stats = engine.stats();
  const double busy =
      stats.steps ? static_cast<double>(stats.busy_slot_steps) / static_cast<double>(stats.steps) : 0;
  std::string out;
  const std::lock_guard lock(mutex_);
  out += "# HELP thimble_requests_total HTTP requests answered\n# TYPE thimble_requests_total counter\n";
  for (const auto& [key, count] : requests_)
    out += fmt::format("thimble_requests_total{{route=\"{}\",status=\"{}\"}} {}\n", key.first, key.second,
                       count);
  write_value(out, "thimble_prompt_tokens_total", "counter", "Tokens of prompts", prompt_tokens_);
  write_value(out, "thimble_prompt_tokens_cached_total", "counter", "of them found in a slot",
              cached_tokens_);
  write_value(out, "thimble_tokens_predicted_total", "counter", "Tokens generated", generated_tokens_);
  write_value(out, "thimble_prompt_seconds_total", "counter", "Time spent on prompts", prompt_seconds_);
  write_value(out, "thimble_tokens_predicted_seconds_total", "counter", "Time spent on answers",
              decode_seconds_);
  write_value(out, "thimble_requests_processing", "gauge", "Samples that have a slot", stats.active);
  write_value(out, "thimble_requests_deferred", "gauge", "Samples that wait for a slot", stats.waiting);
  write_value(out, "thimble_slots", "gauge", "Slots", engine.slots());
  write_value(out, "thimble_connections", "gauge", "Open connections", connections);
  write_value(out, "thimble_decode_steps_total", "counter", "Calls of the model", stats.steps);
  write_value(out, "thimble_busy_slots_per_decode", "gauge", "Mean samples of a call of the model", busy);
  first_token_.write(out, "thimble_time_to_first_token_seconds", "From a request until its first token");
  duration_.write(out, "thimble_request_duration_seconds", "From a request until its answer was sent");
  return out;
}

}  // namespace thimble
