#include "pack/range_codec.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "base/error.h"

namespace thimble {

namespace {

constexpr std::size_t kHeaderBytes = 20;
constexpr std::uint32_t kMaxWidth = 1 << 24;
constexpr std::size_t kCodedPiece = 1 << 18;

constexpr std::size_t kNodes = 264;  // decisions per magnitude
constexpr std::size_t kLevels = 64;  // quantization levels of a running mean
constexpr std::size_t kCoarse = kLevels / 2;

// Step size of the running means: 1/2^n.
constexpr int kColumnRate = 5, kRowRate = 6;

// About 4 levels per factor of two. `mean` is a magnitude in 256ths.
std::size_t level_of(std::uint32_t mean) {
  const auto bits = static_cast<std::size_t>(std::bit_width(mean | 15u));  // 4 to 16
  return std::min(kLevels - 1, (bits - 4) * 4 + ((mean | 15u) >> (bits - 3) & 3));
}

void update_mean(std::uint32_t& mean, std::uint32_t magnitude, int rate) {
  const auto now = static_cast<std::int32_t>(mean), target = static_cast<std::int32_t>(magnitude << 8);
  mean = static_cast<std::uint32_t>(now + ((target - now) >> rate));
}

// Models rows of integers, row after row, for all tensors of a group.
class RowModel {
 public:
  explicit RowModel(std::uint32_t width)
      : columns_(width, 256),
        sign_means_(width),
        magnitude_({kLevels * kNodes, kCoarse * kCoarse * kNodes}, kNodes) {}

  template <class Coder>
  int code(Coder& coder, int value) {
    const std::size_t column = level_of(columns_[column_]), row = level_of(row_);
    bases_ = {column * kNodes, (column / 2 * kCoarse + row / 2) * kNodes};
    const std::uint32_t magnitude = code_magnitude(coder, static_cast<std::uint32_t>(std::abs(value)));
    const bool negative = magnitude != 0 && code_sign(coder, value < 0);
    learn(magnitude, negative);
    return negative ? -static_cast<int>(magnitude) : static_cast<int>(magnitude);
  }

 private:
  template <class Coder>
  int decide(Coder& coder, std::size_t node, int bit) {
    return magnitude_.code(coder, {bases_[0] + node, bases_[1] + node}, node, bit);
  }

  // Codes the number of bits in unary, then the bits below the highest.
  template <class Coder>
  std::uint32_t code_magnitude(Coder& coder, std::uint32_t magnitude) {
    const auto bit_count = static_cast<std::size_t>(std::bit_width(magnitude));
    std::size_t bits = 0;
    while (bits < 8 && decide(coder, bits, bits < bit_count)) ++bits;
    if (bits <= 1) return static_cast<std::uint32_t>(bits);
    std::uint32_t found = 1;
    for (std::size_t left = bits - 1; left-- > 0;) {
      const std::size_t node = 8 + (std::size_t{1} << (bits - 1)) + found;  // found < 2^(bits - 1)
      found = found << 1 |
              static_cast<std::uint32_t>(decide(coder, node, static_cast<int>(magnitude >> left & 1)));
    }
    return found;
  }

  // The context of the sign is the column's running mean of signs, which differs between the
  // columns of an embedding.
  template <class Coder>
  bool code_sign(Coder& coder, bool negative) {
    BitCounter& counter = signs_[static_cast<std::size_t>(std::clamp(sign_means_[column_] / 16 + 8, 0, 15))];
    const int bit = coder.code(negative, std::clamp<std::uint32_t>(counter.probability(), 1, 65535));
    counter.update(bit);
    return bit != 0;
  }

  void learn(std::uint32_t magnitude, bool negative) {
    update_mean(columns_[column_], magnitude, kColumnRate);
    update_mean(row_, magnitude, kRowRate);
    const int sign = magnitude == 0 ? 0 : negative ? -1 : 1;
    sign_means_[column_] += (sign * 128 - sign_means_[column_]) / 32;
    if (++column_ == columns_.size()) column_ = 0;
  }

  std::vector<std::uint32_t> columns_;    // running means of magnitudes, in 256ths
  std::vector<std::int32_t> sign_means_;  // running means of signs, in 128ths
  std::uint32_t row_ = 256, column_ = 0;
  std::array<std::size_t, 2> bases_{};
  BitMixer<2> magnitude_;
  std::array<BitCounter, 16> signs_;
};

// Models the bytes after the integers: planes of scales and floats.
class ByteModel {
 public:
  template <class Coder>
  std::uint32_t code(Coder& coder, std::uint32_t byte) {
    std::uint32_t found = 1;
    for (int left = 7; left >= 0; --left)
      found = found << 1 | static_cast<std::uint32_t>(mixer_.code(coder, {found, previous_ << 8 | found}, 0,
                                                                  static_cast<int>(byte >> left & 1)));
    return previous_ = found & 255;
  }

 private:
  BitMixer<2> mixer_{{256, 65536}, 1};
  std::uint32_t previous_ = 0;
};

// Encodes `bytes`, or decodes into it.
template <class Coder>
void code_all(Coder& coder, const RangeLayout& layout, std::span<std::byte> bytes,
              const std::function<void(std::size_t)>& on_progress) {
  const auto integers = static_cast<std::size_t>(layout.integers);
  RowModel rows(layout.width);
  ByteModel plain;
  for (std::size_t begin = 0; begin < bytes.size(); begin += kCodedPiece) {
    const std::size_t end = std::min(bytes.size(), begin + kCodedPiece);
    for (std::size_t i = begin; i < end; ++i)
      bytes[i] = i < integers
                     ? static_cast<std::byte>(rows.code(coder, static_cast<std::int8_t>(bytes[i])))
                     : static_cast<std::byte>(plain.code(coder, std::to_integer<std::uint32_t>(bytes[i])));
    if (on_progress) on_progress(end - begin);
  }
}

void put(std::uint64_t value, std::size_t size, std::vector<std::byte>& bytes) {
  for (std::size_t i = 0; i < size; ++i) bytes.push_back(static_cast<std::byte>(value >> (8 * i)));
}

std::uint64_t get(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return value;
}

}  // namespace

std::vector<std::byte> range_compress(std::span<const std::byte> bytes, const RangeLayout& layout,
                                      const std::function<void(std::size_t)>& on_progress) {
  check(layout.integers <= bytes.size() && layout.width >= 1 && layout.width <= kMaxWidth,
        "[range] {} integers in rows of {} do not match {} bytes", layout.integers, layout.width,
        bytes.size());
  std::vector<std::byte> out;
  put(bytes.size(), 8, out);
  put(layout.integers, 8, out);
  put(layout.width, 4, out);
  std::vector<std::byte> copy(bytes.begin(), bytes.end());
  RangeEncoder encoder;
  code_all(encoder, layout, copy, on_progress);
  const std::vector<std::byte> coded = encoder.finish();
  out.insert(out.end(), coded.begin(), coded.end());
  return out;
}

void range_decompress(std::span<const std::byte> stored, std::span<std::byte> bytes,
                      const std::function<void(std::size_t)>& on_progress) {
  check(stored.size() >= kHeaderBytes, "the range-coded data is truncated: it has {} bytes", stored.size());
  const std::uint64_t size = get(stored.first(8)), integers = get(stored.subspan(8, 8));
  const auto width = static_cast<std::uint32_t>(get(stored.subspan(16, 4)));
  check(size == bytes.size(), "the range-coded data is damaged: expected {} bytes, found {}", bytes.size(),
        size);
  check(integers <= size && width >= 1 && width <= kMaxWidth,
        "the range-coded data is damaged: {} integers in rows of {} do not match {} bytes", integers, width,
        size);
  RangeDecoder decoder(stored.subspan(kHeaderBytes));
  code_all(decoder, {integers, width}, bytes, on_progress);
  decoder.check_ended();
}

}  // namespace thimble
