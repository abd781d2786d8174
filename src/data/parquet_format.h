// The bytes of a Parquet file: its metadata, and the codecs, levels and encoded strings of its
// pages. Sizes are checked before memory is taken for them. Errors do not name the file; the caller
// adds it.
//
// Format: https://parquet.apache.org/docs/file-format/
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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

// The footer of a file and the headers of pages are structures of Thrift's compact protocol,
// reduced here to what is needed. Offsets and sizes are as stored, not checked against the file.

// The limit of nested structures and columns.
inline constexpr int kMaxNesting = 32;

enum class Repetition { required, optional, repeated };
inline constexpr std::int64_t kByteArray = 6;

struct SchemaElement {
  std::int64_t type = -1;  // of a leaf
  Repetition repetition = Repetition::required;
  std::string name = {};
  std::uint64_t children = 0;
  bool string = false, list = false;  // annotations
};

struct Chunk {
  std::int64_t type = -1;
  Codec codec = Codec::uncompressed;
  std::uint64_t values = 0, begin = 0, bytes = 0;
  std::uint64_t data_page = 0, dictionary_page = 0;
  bool elsewhere = false, encrypted = false;
};

struct RowGroup {
  std::vector<Chunk> chunks = {};
  std::uint64_t rows = 0;
};

struct Footer {
  std::vector<SchemaElement> schema = {};
  std::vector<RowGroup> groups = {};
};

Footer footer_of(std::string_view text);

struct PageHeader {
  std::int64_t type = -1;
  std::uint64_t size = 0, stored = 0, values = 0;
  std::optional<std::uint32_t> crc = std::nullopt;
  std::int64_t encoding = 0, definition_encoding = 3, repetition_encoding = 3;
  std::uint64_t definition_bytes = 0, repetition_bytes = 0;  // v2
  bool compressed = true;                                    // v2
};
inline constexpr std::int64_t kDataPage = 0, kDictionaryPage = 2, kDataPage2 = 3;

PageHeader page_header(PageBytes& bytes);

}  // namespace thimble::parquet
