// Counters for Prometheus. Any thread may count.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "infer/request.h"
#include "serve/engine.h"

namespace thimble {

class Metrics {
 public:
  // `route` comes from the table of routes, never from a client: the number of series is bounded.
  void count_request(std::string_view route, int status, double seconds);
  void count_answer(const Usage& usage);

  // The text format, version 0.0.4.
  std::string text(const Engine& engine, int connections) const;

 private:
  static constexpr std::array kBounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0};
  struct Histogram {
    std::array<std::int64_t, kBounds.size() + 1> counts = {};
    double sum = 0;
    void add(double value);
    void write(std::string& out, std::string_view name, std::string_view help) const;
  };

  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::int64_t> requests_;
  Histogram first_token_, duration_;
  std::int64_t prompt_tokens_ = 0, cached_tokens_ = 0, generated_tokens_ = 0;
  double prompt_seconds_ = 0, decode_seconds_ = 0;
};

}  // namespace thimble
