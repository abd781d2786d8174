// Numbers in files, lowest byte first.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include "base/error.h"

namespace thimble {

static_assert(std::endian::native == std::endian::little);

template <class T>
void append_number(std::string& out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Reads front to back; what is not there is an Error that names the file.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}

  std::size_t at() const { return at_; }
  std::size_t left() const { return bytes_.size() - at_; }
  const std::string& name() const { return name_; }

  std::span<const std::byte> take(std::uint64_t count) {
    check(count <= left(), "{} ends too early: expected {} bytes at {}, found {}", name_, count, at_, left());
    const auto taken = bytes_.subspan(at_, static_cast<std::size_t>(count));
    at_ += static_cast<std::size_t>(count);
    return taken;
  }
  std::string_view text(std::uint64_t count) {
    const auto taken = take(count);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }
  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  std::string name_;
  std::size_t at_ = 0;
};

}  // namespace thimble
