#include "http/access.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "base/text.h"

namespace thimble {

namespace {

constexpr std::size_t kMostClients = 10000;
constexpr std::string_view kBearer = "bearer ";

// A numeric address in 127.0.0.0/8. A numeric address cannot be redirected by a name server.
bool is_loopback_number(std::string_view host) {
  in_addr address{};
  return inet_pton(AF_INET, std::string(host).c_str(), &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
}

}  // namespace

std::string new_id(std::string_view prefix) {
  std::random_device entropy;
  return fmt::format("{}{:08x}{:08x}{:08x}", prefix, entropy(), entropy(), entropy());
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  // The loop runs over `b`, which comes from the client, so its length is not secret.
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const char expected = a.empty() ? '\0' : a[i % a.size()];
    difference |= static_cast<unsigned char>(expected ^ b[i]);
  }
  return difference == 0;
}

bool ApiKeys::admits(const HttpRequest& request) const {
  std::string_view given;
  const std::string* header = request.header("authorization");
  if (header && lower_case(header->substr(0, kBearer.size())) == kBearer)
    given = std::string_view(*header).substr(kBearer.size());
  else if (const std::string* key = request.header("x-api-key"))
    given = *key;
  bool found = false;
  for (const std::string& key : keys_) found |= equal_in_constant_time(key, given);
  return found || keys_.empty();
}

std::vector<std::string> keys_in(std::string_view text) {
  std::vector<std::string> keys;
  if (constexpr std::string_view kMark = "\xEF\xBB\xBF"; text.starts_with(kMark))
    text.remove_prefix(kMark.size());
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos || line[begin] == '#') continue;
    line = line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
    keys.emplace_back(line);
  }
  return keys;
}

std::string_view unusable_key(std::string_view key) {
  if (key.empty()) return "is empty";
  // The parser of requests trims header values.
  if (key.front() == ' ' || key.back() == ' ') return "begins or ends with a space";
  const bool printable = std::ranges::all_of(key, [](char c) { return c >= ' ' && c < 0x7f; });
  return printable ? "" : "contains a character that is not printable ASCII";
}

double RateLimit::burst() const {
  return std::max(1.0, 2 * per_second_);
}

double RateLimit::wait_for(const std::string& client, double now) {
  if (per_second_ <= 0) return 0;
  const std::lock_guard lock(mutex_);
  if (buckets_.size() >= kMostClients && !buckets_.contains(client)) forget_full_buckets(now);
  Bucket& bucket = buckets_.try_emplace(client, Bucket{burst(), now}).first->second;
  bucket.tokens = std::min(burst(), bucket.tokens + (now - bucket.seen) * per_second_);
  bucket.seen = now;
  if (bucket.tokens < 1) return (1 - bucket.tokens) / per_second_;
  bucket.tokens -= 1;
  return 0;
}

// Drops buckets that would be full by now: a new bucket is identical. If too many remain, drops all
// of them, because bounded memory is more important than the limit.
void RateLimit::forget_full_buckets(double now) {
  std::erase_if(buckets_, [&](const auto& entry) {
    return entry.second.tokens + (now - entry.second.seen) * per_second_ >= burst();
  });
  if (buckets_.size() >= kMostClients) buckets_.clear();
}

MemoryBudget::MemoryBudget(std::size_t bytes, std::size_t trim_bytes)
    : bytes_(bytes), trim_bytes_(trim_bytes) {}

void MemoryBudget::wait(double seconds) {
  std::unique_lock lock(mutex_);
  freed_.wait_for(lock, std::chrono::duration<double>(seconds));
}

bool MemoryBudget::Share::resize(std::size_t bytes) {
  {
    const std::lock_guard lock(budget_.mutex_);
    if (bytes > bytes_ && bytes - bytes_ > budget_.bytes_ - budget_.taken_) return false;
    budget_.taken_ = budget_.taken_ - bytes_ + bytes;
  }
  if (bytes < bytes_) budget_.freed_.notify_all();
  bytes_ = bytes;
  most_ = std::max(most_, bytes);
  return true;
}

MemoryBudget::Share::~Share() {
  resize(0);
#ifdef __GLIBC__
  // Threads leave freed blocks in arenas of their own, where no other thread can use them.
  if (most_ >= budget_.trim_bytes_) malloc_trim(0);
#endif
}

bool is_local_host(std::string_view host) {
  const std::size_t colon = host.rfind(':');
  const bool v6 = host.starts_with('[');
  if (colon != std::string_view::npos && (!v6 || host[colon - 1] == ']')) host = host.substr(0, colon);
  return host == "[::1]" || is_loopback_number(host) || lower_case(host) == "localhost";
}

bool is_local_origin(std::string_view origin) {
  for (const std::string_view scheme : {"http://", "https://"})
    if (origin.starts_with(scheme)) return is_local_host(origin.substr(scheme.size()));
  return false;
}

}  // namespace thimble
