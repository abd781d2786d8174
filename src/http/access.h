// Who may ask, how often, and from which page.
#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "http/message.h"

namespace thimble {

// "chatcmpl-3f9a..." with 96 random bits: ids of answers, nonces of pages.
std::string new_id(std::string_view prefix);

// Takes as long whatever the key is; says nothing of how much of it was right.
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

// Keys of a file: one a line; blank lines and those that begin with # are none.
std::vector<std::string> keys_in(std::string_view text);

// So many requests a second for each client, and twice as many at once.
class RateLimit {
 public:
  explicit RateLimit(double per_second) : per_second_(per_second) {}  // 0: no limit

  // 0: go on; else seconds until the next request will be welcome.
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

// A page on this machine: http://localhost:3000, http://127.0.0.1, http://[::1]:8080.
bool is_local_origin(std::string_view origin);
// "localhost:8080", "127.0.0.1", "[::1]:8080": what a browser calls this machine; also Debian's 127.0.1.1.
bool is_local_host(std::string_view host);

}  // namespace thimble
