// The bytes of a Parquet page: codecs, levels and encoded strings. All sizes come from a file and
// are checked before they are used. Errors do not name the file; the caller adds it.
//
// Format: https://parquet.apache.org/docs/file-format/
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace thimble::parquet {

// The numbers are those of the format.
enum class Codec {
  uncompressed = 0,
  snappy = 1,
  gzip = 2,
  lzo = 3,
  brotli = 4,
  lz4 = 5,
  zstd = 6,
  lz4_raw = 7
};
enum class Encoding {
  plain = 0,
  plain_dictionary = 2,
  rle = 3,
  bit_packed = 4,
  delta_binary_packed = 5,
  delta_length_byte_array = 6,
  delta_byte_array = 7,
  rle_dictionary = 8,
  byte_stream_split = 9
};
std::string name_of(Codec codec);
std::string name_of(Encoding encoding);

// The limit of a decompressed page. Writers aim at 1 MB, but some write a column in one page.
inline constexpr std::uint64_t kMaxPageBytes = std::uint64_t{256} << 20;

// `size` is the decompressed size that the page's header promises. Throws for other sizes, damaged
// data and codecs that are not supported.
std::string decompressed(Codec codec, std::string_view packed, std::uint64_t size);

// Reads a sequence of bytes. Reading beyond the end is an error.
class PageBytes {
 public:
  explicit PageBytes(std::string_view bytes = {}) : rest_(bytes) {}

  std::string_view take(std::uint64_t count);
  std::uint8_t byte() { return static_cast<std::uint8_t>(take(1)[0]); }
  std::uint32_t u32();     // little-endian
  std::uint64_t varint();  // LEB128
  std::int64_t zigzag();
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

// Runs of equal numbers and of bit-packed ones: levels, and indices into a dictionary. A bit width
// of 0 means that all numbers are 0 and there are no bytes.
class HybridNumbers {
 public:
  HybridNumbers() = default;
  HybridNumbers(std::string_view bytes, unsigned bit_width);

  std::uint32_t next();

 private:
  PageBytes bytes_;
  unsigned bit_width_ = 0;
  std::uint64_t left_ = 0;    // numbers of the current run
  std::uint32_t value_ = 0;   // of a run of equal numbers
  std::string_view packed_;   // of a bit-packed run; empty: a run of equal numbers
  std::uint64_t at_bit_ = 0;  // in packed_
};

// DELTA_BINARY_PACKED integers, decoded one at a time.
class DeltaNumbers {
 public:
  DeltaNumbers() = default;
  explicit DeltaNumbers(PageBytes bytes);

  std::int64_t next();
  PageBytes after() const;  // the bytes after all numbers; call it before next()

 private:
  void begin_block();
  void begin_miniblock();

  PageBytes bytes_;
  std::uint64_t block_ = 0, miniblocks_ = 0, per_miniblock_ = 0, count_ = 0, read_ = 0;
  std::uint64_t value_ = 0;      // the next number; wraps around as the format demands
  std::uint64_t min_delta_ = 0;  // of the block
  std::string_view widths_;      // of the block's miniblocks
  std::size_t miniblock_ = 0;
  std::uint64_t in_miniblock_ = 0;
  std::string_view packed_;
};

// The strings of a data page. A view is valid until the next call.
class PageStrings {
 public:
  virtual ~PageStrings() = default;
  virtual std::string_view next() = 0;
};

// `dictionary` is null if the column chunk has none. `bytes` and `dictionary` must outlive the
// result. Throws for encodings that are not supported.
std::unique_ptr<PageStrings> open_strings(Encoding encoding, std::string_view bytes,
                                          const std::vector<std::string_view>* dictionary);

// The strings of a dictionary page: views into `bytes`.
std::vector<std::string_view> dictionary_strings(std::string_view bytes, std::uint64_t count);

}  // namespace thimble::parquet
