#include "data/parquet_pages.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace thimble::parquet {

std::string name_of(Codec codec) {
  constexpr std::array<std::string_view, 8> kNames = {"uncompressed", "SNAPPY", "GZIP", "LZO",
                                                      "BROTLI",       "LZ4",    "ZSTD", "LZ4_RAW"};
  const auto number = static_cast<std::size_t>(codec);
  return number < kNames.size() ? std::string(kNames[number]) : fmt::format("number {}", number);
}

std::string name_of(Encoding encoding) {
  constexpr std::array<std::string_view, 10> kNames = {"PLAIN",
                                                       "number 1",
                                                       "PLAIN_DICTIONARY",
                                                       "RLE",
                                                       "BIT_PACKED",
                                                       "DELTA_BINARY_PACKED",
                                                       "DELTA_LENGTH_BYTE_ARRAY",
                                                       "DELTA_BYTE_ARRAY",
                                                       "RLE_DICTIONARY",
                                                       "BYTE_STREAM_SPLIT"};
  const auto number = static_cast<std::size_t>(encoding);
  return number < kNames.size() ? std::string(kNames[number]) : fmt::format("number {}", number);
}

namespace {

std::string snappy(std::string_view packed, std::uint64_t size) {
  PageBytes in(packed);
  const std::uint64_t promised = in.varint();
  check(promised == size, "expected a page of {} bytes, its snappy data has {}", size, promised);
  std::string out;
  out.reserve(size);
  while (!in.rest().empty()) {
    const unsigned tag = in.byte();
    std::uint64_t length = tag >> 2, offset = 0;
    const auto number = [&](unsigned bytes) {  // little-endian
      std::uint64_t value = 0;
      for (unsigned i = 0; i < bytes; ++i) value |= std::uint64_t{in.byte()} << (8 * i);
      return value;
    };
    switch (tag & 3) {
      case 0: {  // a literal; long ones have their length in 1 to 4 bytes
        if (length >= 60) length = number(static_cast<unsigned>(length) - 59);
        ++length;
        check(length <= size - out.size(), "the snappy data is longer than {} bytes", size);
        out += in.take(length);
        continue;
      }
      case 1:
        length = 4 + ((tag >> 2) & 7);
        offset = (tag >> 5) << 8 | number(1);
        break;
      default:
        ++length;
        offset = number((tag & 3) == 2 ? 2 : 4);
    }
    check(offset > 0 && offset <= out.size(), "the snappy data refers to {} bytes before its start",
          offset > out.size() ? offset - out.size() : 0);
    check(length <= size - out.size(), "the snappy data is longer than {} bytes", size);
    // Byte by byte, because a copy may read what it has written.
    for (std::size_t from = out.size() - offset; length > 0; --length) out += out[from++];
  }
  check(out.size() == size, "expected a page of {} bytes, its snappy data ends after {}", size, out.size());
  return out;
}

std::string gzip(std::string_view packed, std::uint64_t size) {
  constexpr int kGzipOrZlib = 32 + MAX_WBITS;
  constexpr std::uint64_t kMostGrowth = 1100;  // deflate reaches 1032
  check(size <= kMostGrowth * packed.size(), "expected a page of {} bytes, found {} bytes of gzip data", size,
        packed.size());
  z_stream state{};
  check(inflateInit2(&state, kGzipOrZlib) == Z_OK, "out of memory");
  struct End {
    z_stream& state;
    ~End() { inflateEnd(&state); }
  } end{state};
  std::string out(size, '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  state.avail_in = static_cast<uInt>(packed.size());
  Bytef spare = 0;  // for an empty page: inflate() needs an output buffer
  state.next_out = size > 0 ? reinterpret_cast<Bytef*>(out.data()) : &spare;
  state.avail_out = size > 0 ? static_cast<uInt>(size) : 1;
  const int result = inflate(&state, Z_FINISH);
  check(result == Z_STREAM_END && state.total_out == size, "expected a page of {} bytes, its gzip data {}",
        size,
        result == Z_STREAM_END ? "is shorter"
        : state.msg            ? state.msg
                               : "is longer or truncated");
  return out;
}

std::string zstd(std::string_view packed, std::uint64_t size) {
  const unsigned long long promised = ZSTD_getFrameContentSize(packed.data(), packed.size());
  check(promised == size || promised == ZSTD_CONTENTSIZE_UNKNOWN,
        "expected a page of {} bytes, found other zstd data", size);
  std::string out(size, '\0');
  const std::size_t made = ZSTD_decompress(out.data(), out.size(), packed.data(), packed.size());
  check(!ZSTD_isError(made), "expected a page of {} bytes, its zstd data is damaged: {}", size,
        ZSTD_getErrorName(made));
  check(made == size, "expected a page of {} bytes, its zstd data has {}", size, made);
  return out;
}

}  // namespace

std::string decompressed(Codec codec, std::string_view packed, std::uint64_t size) {
  check(size <= kMaxPageBytes && packed.size() <= kMaxPageBytes, Hint{"write the file with smaller pages"},
        "a page of {} bytes is larger than the limit of {}", std::max<std::uint64_t>(size, packed.size()),
        kMaxPageBytes);
  switch (codec) {
    case Codec::uncompressed:
      check(packed.size() == size, "expected a page of {} bytes, it has {}", size, packed.size());
      return std::string(packed);
    case Codec::snappy:
      return snappy(packed, size);
    case Codec::gzip:
      return gzip(packed, size);
    case Codec::zstd:
      return zstd(packed, size);
    default:
      fail(Hint{"write the file with snappy, gzip or zstd, or convert it to .jsonl"},
           "the codec {} is not supported", name_of(codec));
  }
}

std::string_view PageBytes::take(std::uint64_t count) {
  check(count <= rest_.size(), "expected {} more bytes, found {}", count, rest_.size());
  const std::string_view taken = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return taken;
}

std::uint32_t PageBytes::u32() {
  const std::string_view bytes = take(4);
  std::uint32_t value = 0;
  for (unsigned i = 0; i < 4; ++i) value |= std::uint32_t{static_cast<std::uint8_t>(bytes[i])} << (8 * i);
  return value;
}

std::uint64_t PageBytes::varint() {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const std::uint8_t next = byte();
    value |= std::uint64_t{next & 0x7Fu} << shift;
    if (next < 0x80) return value;
  }
  fail("found a number of more than 64 bits");
}

std::int64_t PageBytes::zigzag() {
  const std::uint64_t value = varint();
  return static_cast<std::int64_t>((value >> 1) ^ (~(value & 1) + 1));
}

namespace {

// The `width` bits from bit `at` on; the first bit of a byte is its lowest.
std::uint64_t bits_at(std::string_view bytes, std::uint64_t at, unsigned width) {
  std::uint64_t value = 0;
  for (unsigned done = 0; done < width;) {
    const unsigned in_byte = at % 8, count = std::min(8 - in_byte, width - done);
    const std::uint64_t byte = static_cast<std::uint8_t>(bytes[at / 8]);
    value |= ((byte >> in_byte) & ((1u << count) - 1)) << done;
    done += count;
    at += count;
  }
  return value;
}

}  // namespace

HybridNumbers::HybridNumbers(std::string_view bytes, unsigned bit_width)
    : bytes_(bytes), bit_width_(bit_width) {
  check(bit_width <= 32, "expected numbers of at most 32 bits, found {}", bit_width);
}

std::uint32_t HybridNumbers::next() {
  if (bit_width_ == 0) return 0;
  while (left_ == 0) {
    const std::uint64_t header = bytes_.varint();
    const std::uint64_t count = header >> 1;
    packed_ = {};
    if (header & 1) {
      // The last group may be cut short after its last number.
      const std::uint64_t available = 8 * std::uint64_t{bytes_.rest().size()} / bit_width_;
      left_ = count > available / 8 ? available : 8 * count;
      check(left_ > 0 || count == 0, "a run of numbers is truncated");
      packed_ = bytes_.take(std::min<std::uint64_t>(bytes_.rest().size(), (left_ * bit_width_ + 7) / 8));
      at_bit_ = 0;
    } else {
      left_ = count;
      value_ = 0;
      for (unsigned i = 0; i < (bit_width_ + 7) / 8; ++i) value_ |= std::uint32_t{bytes_.byte()} << (8 * i);
    }
  }
  --left_;
  if (packed_.empty()) return value_;
  at_bit_ += bit_width_;
  return static_cast<std::uint32_t>(bits_at(packed_, at_bit_ - bit_width_, bit_width_));
}

DeltaNumbers::DeltaNumbers(PageBytes bytes) : bytes_(bytes) {
  block_ = bytes_.varint();
  miniblocks_ = bytes_.varint();
  count_ = bytes_.varint();
  value_ = static_cast<std::uint64_t>(bytes_.zigzag());
  constexpr std::uint64_t kMostInBlock = 1 << 20;
  check(block_ > 0 && block_ <= kMostInBlock && miniblocks_ > 0 && block_ % miniblocks_ == 0 &&
            (block_ / miniblocks_) % 8 == 0,
        "expected blocks of numbers, found blocks of {} in {} parts", block_, miniblocks_);
  per_miniblock_ = block_ / miniblocks_;
  miniblock_ = miniblocks_;
}

void DeltaNumbers::begin_block() {
  min_delta_ = static_cast<std::uint64_t>(bytes_.zigzag());
  widths_ = bytes_.take(miniblocks_);
  miniblock_ = 0;
}

void DeltaNumbers::begin_miniblock() {
  const unsigned width = static_cast<std::uint8_t>(widths_[miniblock_]);
  check(width <= 64, "expected numbers of at most 64 bits, found {}", width);
  // The last miniblock may be cut short after its last number.
  const std::uint64_t needed = (std::min(per_miniblock_, count_ - read_) * width + 7) / 8;
  check(needed <= bytes_.rest().size(), "a block of numbers is truncated");
  packed_ = bytes_.take(std::min<std::uint64_t>(bytes_.rest().size(), per_miniblock_ * width / 8));
  in_miniblock_ = 0;
}

std::int64_t DeltaNumbers::next() {
  check(read_ < count_, "expected more than {} numbers", count_);
  const auto value = static_cast<std::int64_t>(value_);
  if (++read_ == count_) return value;
  if (miniblock_ == miniblocks_) begin_block();
  if (in_miniblock_ == 0) begin_miniblock();
  const unsigned width = static_cast<std::uint8_t>(widths_[miniblock_]);
  value_ += min_delta_ + bits_at(packed_, in_miniblock_ * width, width);
  if (++in_miniblock_ == per_miniblock_) {
    in_miniblock_ = 0;
    ++miniblock_;
  }
  return value;
}

PageBytes DeltaNumbers::after() const {
  DeltaNumbers copy = *this;
  // The first number is in the header.
  for (copy.read_ = std::min<std::uint64_t>(1, count_); copy.read_ < copy.count_;) {
    copy.begin_block();
    for (; copy.miniblock_ < miniblocks_ && copy.read_ < copy.count_; ++copy.miniblock_) {
      copy.begin_miniblock();
      copy.read_ += std::min(per_miniblock_, copy.count_ - copy.read_);
    }
  }
  return copy.bytes_;
}

namespace {

std::uint64_t length_in(DeltaNumbers& lengths) {
  const std::int64_t length = lengths.next();
  check(length >= 0, "expected the length of a string, found {}", length);
  return static_cast<std::uint64_t>(length);
}

class PlainStrings final : public PageStrings {
 public:
  explicit PlainStrings(std::string_view bytes) : bytes_(bytes) {}
  std::string_view next() override { return bytes_.take(bytes_.u32()); }

 private:
  PageBytes bytes_;
};

class DictionaryStrings final : public PageStrings {
 public:
  DictionaryStrings(std::string_view bytes, const std::vector<std::string_view>& dictionary)
      : dictionary_(dictionary) {
    if (bytes.empty()) return;  // a page of nulls
    indices_ = HybridNumbers(bytes.substr(1), static_cast<std::uint8_t>(bytes[0]));
  }
  std::string_view next() override {
    const std::uint32_t index = indices_.next();
    check(index < dictionary_.size(), "expected an index into a dictionary of {} strings, found {}",
          dictionary_.size(), index);
    return dictionary_[index];
  }

 private:
  const std::vector<std::string_view>& dictionary_;
  HybridNumbers indices_;
};

// DELTA_LENGTH_BYTE_ARRAY: all lengths, then all strings.
class LengthStrings final : public PageStrings {
 public:
  explicit LengthStrings(PageBytes bytes) : lengths_(bytes), bytes_(lengths_.after()) {}
  std::string_view next() override { return bytes_.take(length_in(lengths_)); }

 private:
  DeltaNumbers lengths_;
  PageBytes bytes_;
};

// DELTA_BYTE_ARRAY: how much of the previous string each begins with, then what follows.
class PrefixStrings final : public PageStrings {
 public:
  explicit PrefixStrings(PageBytes bytes) : prefixes_(bytes), suffixes_(prefixes_.after()) {}
  std::string_view next() override {
    const std::uint64_t prefix = length_in(prefixes_);
    check(prefix <= last_.size(), "expected a prefix of at most {} bytes, found {}", last_.size(), prefix);
    last_.resize(prefix);
    last_ += suffixes_.next();
    check(last_.size() <= kMaxPageBytes, "a string is longer than {} bytes", kMaxPageBytes);
    return last_;
  }

 private:
  DeltaNumbers prefixes_;
  LengthStrings suffixes_;
  std::string last_;
};

}  // namespace

std::unique_ptr<PageStrings> open_strings(Encoding encoding, std::string_view bytes,
                                          const std::vector<std::string_view>* dictionary) {
  switch (encoding) {
    case Encoding::plain:
      return std::make_unique<PlainStrings>(bytes);
    case Encoding::plain_dictionary:
    case Encoding::rle_dictionary:
      check(dictionary != nullptr, "the page needs a dictionary, but there is no dictionary page");
      return std::make_unique<DictionaryStrings>(bytes, *dictionary);
    case Encoding::delta_length_byte_array:
      if (bytes.empty()) return std::make_unique<PlainStrings>(bytes);  // a page of nulls
      return std::make_unique<LengthStrings>(PageBytes(bytes));
    case Encoding::delta_byte_array:
      if (bytes.empty()) return std::make_unique<PlainStrings>(bytes);
      return std::make_unique<PrefixStrings>(PageBytes(bytes));
    default:
      fail(Hint{"write the column with the encoding PLAIN, or convert the file to .jsonl"},
           "the encoding {} of strings is not supported", name_of(encoding));
  }
}

std::vector<std::string_view> dictionary_strings(std::string_view bytes, std::uint64_t count) {
  check(count <= bytes.size() / 4, "expected a dictionary of {} strings, found {} bytes", count,
        bytes.size());
  PlainStrings plain(bytes);
  std::vector<std::string_view> strings;
  strings.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) strings.push_back(plain.next());
  return strings;
}

}  // namespace thimble::parquet
