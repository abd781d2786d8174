// A carry-less range coder for binary decisions (as in lpaq): an interval of 32 bits is cut where the probability says,
// and its leading bytes go out as soon as both ends agree on them.
//
//   RangeEncoder out;  out.code(bit, p);  ...  out.finish();       p: of a 1, in 65536ths, from 1 to 65535
//   RangeDecoder in(bytes);  bit = in.code(0, p);                  the same p, the same bits
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"

namespace thimble {

// Where the interval [low, high] is cut.
constexpr std::uint32_t cut_of(std::uint32_t low, std::uint32_t high, std::uint32_t p) {
  return low + static_cast<std::uint32_t>((std::uint64_t{high - low} * p) >> 16);
}

class RangeEncoder {
 public:
  int code(int bit, std::uint32_t p) {
    const std::uint32_t cut = cut_of(low_, high_, p);
    bit ? high_ = cut : low_ = cut + 1;
    while (((low_ ^ high_) & 0xff000000u) == 0) {
      bytes_.push_back(static_cast<std::byte>(high_ >> 24));
      low_ <<= 8;
      high_ = high_ << 8 | 255;
    }
    return bit;
  }

  // The four bytes that a decoder has read ahead by then.
  std::vector<std::byte> finish() {
    for (int shift = 24; shift >= 0; shift -= 8) bytes_.push_back(static_cast<std::byte>(low_ >> shift));
    return std::move(bytes_);
  }

 private:
  std::uint32_t low_ = 0, high_ = 0xffffffffu;
  std::vector<std::byte> bytes_;
};

class RangeDecoder {
 public:
  explicit RangeDecoder(std::span<const std::byte> bytes) : bytes_(bytes) {
    for (int i = 0; i < 4; ++i) code_ = code_ << 8 | next();
  }

  int code(int, std::uint32_t p) {
    const std::uint32_t cut = cut_of(low_, high_, p);
    const int bit = code_ <= cut;
    bit ? high_ = cut : low_ = cut + 1;
    while (((low_ ^ high_) & 0xff000000u) == 0) {
      low_ <<= 8;
      high_ = high_ << 8 | 255;
      code_ = code_ << 8 | next();
    }
    return bit;
  }

  void check_ended() const {
    check(at_ == bytes_.size(), "the range-coded data is damaged: {} of its {} bytes are not used",
          bytes_.size() - at_, bytes_.size());
  }

 private:
  std::uint32_t next() {
    check(at_ < bytes_.size(), "the range-coded data is damaged: it ends too early");
    return std::to_integer<std::uint32_t>(bytes_[at_++]);
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  std::uint32_t low_ = 0, high_ = 0xffffffffu, code_ = 0;
};

}  // namespace thimble
