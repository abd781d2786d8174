// API keys, rate limits, and checks of a request's origin.
#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "http/message.h"

namespace thimble {

// "chatcmpl-3f9a..." with 96 random bits, for response ids and page nonces.
std::string new_id(std::string_view prefix);

// Compares in time that depends only on the size of `b`, so that timing does not reveal how much of
// a key is correct.
bool equal_in_constant_time(std::string_view a, std::string_view b);

class ApiKeys {
 public:
  explicit ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  bool needed() const { return !keys_.empty(); }
  // "Authorization: Bearer KEY" or "X-Api-Key: KEY".
  bool admits(const HttpRequest& request) const;

 private:
  std::vector<std::string> keys_;
};

// Parses a file of keys: one per line; blank lines and lines that start with # are ignored.
std::vector<std::string> keys_in(std::string_view text);

// A token bucket per client: `per_second` requests per second, and bursts of twice that number.
class RateLimit {
 public:
  explicit RateLimit(double per_second) : per_second_(per_second) {}  // 0: no limit

  // Returns 0 if the request is allowed, otherwise the seconds to wait before the next one.
  double wait_for(const std::string& client, double now);

 private:
  struct Bucket {
    double tokens, seen;
  };
  double burst() const;
  void forget_full_buckets(double now);

  double per_second_;
  std::mutex mutex_;
  std::unordered_map<std::string, Bucket> buckets_;
};

// Whether a page was served by this machine: http://localhost:3000, http://127.0.0.1,
// http://[::1]:8080.
bool is_local_origin(std::string_view origin);
// Whether a Host header names this machine: "localhost:8080", "127.0.0.1", "[::1]:8080", also
// Debian's 127.0.1.1.
bool is_local_host(std::string_view host);

}  // namespace thimble
