// API keys, limits on rates and memory, and checks of a request's origin.
#pragma once

#include <condition_variable>
#include <cstddef>
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

// Parses a file of keys: one per line; blank lines and lines that start with # are ignored, as is a
// byte order mark.
std::vector<std::string> keys_in(std::string_view text);

// Why no client could send this key in a header, or "". The key itself is not part of the text.
std::string_view unusable_key(std::string_view key);

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

// An amount of memory that all requests share. A request takes a share of the size of its worst
// case before it allocates, so the sum is bounded whatever clients send. Thread-safe.
class MemoryBudget {
 public:
  // When a share of at least `trim_bytes` ends, freed memory is returned to the system.
  MemoryBudget(std::size_t bytes, std::size_t trim_bytes);

  class Share {
   public:
    explicit Share(MemoryBudget& budget) : budget_(budget) {}  // of 0 bytes
    ~Share();
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // Returns false and changes nothing if the budget has too little left.
    bool resize(std::size_t bytes);

   private:
    MemoryBudget& budget_;
    std::size_t bytes_ = 0, most_ = 0;
  };

  std::size_t bytes() const { return bytes_; }
  // Waits until a share becomes smaller, but at most `seconds`.
  void wait(double seconds);

 private:
  std::size_t bytes_, trim_bytes_;
  std::mutex mutex_;
  std::condition_variable freed_;
  std::size_t taken_ = 0;
};

// Whether a page was served by this machine: http://localhost:3000, http://127.0.0.1,
// http://[::1]:8080.
bool is_local_origin(std::string_view origin);
// Whether a Host header names this machine: "localhost:8080", "127.0.0.1", "[::1]:8080", also
// Debian's 127.0.1.1.
bool is_local_host(std::string_view host);

}  // namespace thimble
