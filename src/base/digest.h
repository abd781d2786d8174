// XXH3-128 digests. They detect corrupted data, such as a flipped bit in a checkpoint, and are not
// cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace thimble {

struct Digest {
  std::uint64_t high = 0, low = 0;

  std::string hex() const;  // 32 lower-case digits, as `xxhsum -H2` prints them
  bool operator==(const Digest&) const = default;
};

Digest digest_of(std::span<const std::byte> bytes);
Digest digest_of(std::string_view text);

// Computes the same digest from data that arrives in pieces.
class Digester {
 public:
  Digester();
  ~Digester();
  Digester(Digester&&) noexcept;
  Digester& operator=(Digester&&) noexcept;

  void add(std::span<const std::byte> bytes);
  void add(std::string_view text);
  Digest result() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace thimble
