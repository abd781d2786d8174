#include "base/digest.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace thimble {

namespace {

Digest from_xxh(XXH128_hash_t hash) {
  return {hash.high64, hash.low64};
}

struct FreeXxh {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

}  // namespace

struct Digester::State {
  std::unique_ptr<XXH3_state_t, FreeXxh> xxh{XXH3_createState()};
};

std::string Digest::hex() const {
  return fmt::format("{:016x}{:016x}", high, low);
}

Digest digest_of(std::span<const std::byte> bytes) {
  return from_xxh(XXH3_128bits(bytes.data(), bytes.size()));
}

Digest digest_of(std::string_view text) {
  return digest_of(std::as_bytes(std::span(text)));
}

Digester::Digester() : state_(std::make_unique<State>()) {
  if (!state_->xxh) throw std::bad_alloc();
  XXH3_128bits_reset(state_->xxh.get());
}
Digester::~Digester() = default;
Digester::Digester(Digester&&) noexcept = default;
Digester& Digester::operator=(Digester&&) noexcept = default;

void Digester::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh.get(), bytes.data(), bytes.size());
}

void Digester::add(std::string_view text) {
  add(std::as_bytes(std::span(text)));
}

Digest Digester::result() const {
  return from_xxh(XXH3_128bits_digest(state_->xxh.get()));
}

}  // namespace thimble
