#include "data/parquet_format.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
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
    // A copy may read what it has written, so it repeats the last `offset` bytes.
    const std::size_t from = out.size() - offset;
    for (std::uint64_t done = 0; done < length; done += offset)
      out.append(out, from, std::min(offset, length - done));
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

namespace {

constexpr std::size_t kMaxSchema = 10'000;

// Thrift's compact protocol: a struct is a list of numbered fields, of which unknown ones are
// skipped.
enum class Thrift { stop, yes, no, i8, i16, i32, i64, real, binary, list, set, map, object };

class ThriftStruct {
 public:
  explicit ThriftStruct(PageBytes& bytes, int depth = 0) : bytes_(bytes), depth_(depth) {
    check(depth <= kMaxNesting, "structures are nested more than {} deep", kMaxNesting);
  }

  // Moves to the next field; false at the end. An unread field is skipped.
  bool next() {
    if (!read_) skip(type_);
    const std::uint8_t head = bytes_.byte();
    type_ = type_of(head & 0xF);
    read_ = type_ == Thrift::stop;
    if (read_) return false;
    const int step = head >> 4;
    id_ = step > 0 ? id_ + step : static_cast<int>(std::clamp<std::int64_t>(bytes_.zigzag(), -1, 1 << 15));
    return true;
  }
  int id() const { return id_; }

  std::int64_t integer() {
    expect(type_ == Thrift::i16 || type_ == Thrift::i32 || type_ == Thrift::i64, "an integer");
    return bytes_.zigzag();
  }
  std::uint64_t size() {
    const std::int64_t value = integer();
    check(value >= 0, "field {}: expected a size, found {}", id_, value);
    return static_cast<std::uint64_t>(value);
  }
  bool boolean() {
    expect(type_ == Thrift::yes || type_ == Thrift::no, "a truth value");
    return type_ == Thrift::yes;
  }
  std::string_view binary() {
    expect(type_ == Thrift::binary, "a string");
    return bytes_.take(bytes_.varint());
  }
  ThriftStruct object() {
    expect(type_ == Thrift::object, "a structure");
    return ThriftStruct(bytes_, depth_ + 1);
  }
  // Calls use(ThriftStruct&) for each element of a list of structures.
  template <class Use>
  void objects(const Use& use) {
    expect(type_ == Thrift::list, "a list");
    const auto [type, count] = list_head();
    check(type == Thrift::object || count == 0, "field {}: expected a list of structures", id_);
    for (std::uint64_t i = 0; i < count; ++i) {
      ThriftStruct element(bytes_, depth_ + 1);
      use(element);
    }
  }

 private:
  static Thrift type_of(unsigned number) {
    check(number <= static_cast<unsigned>(Thrift::object), "found a field of the unknown type {}", number);
    return static_cast<Thrift>(number);
  }
  void expect(bool holds, std::string_view what) {
    check(holds, "field {}: expected {}", id_, what);
    read_ = true;
  }
  std::pair<Thrift, std::uint64_t> list_head() {
    const std::uint8_t head = bytes_.byte();
    const std::uint64_t count = head >> 4 == 15 ? bytes_.varint() : head >> 4;
    check(count <= bytes_.rest().size(), "found a list of {} elements in {} bytes", count,
          bytes_.rest().size());
    return {type_of(head & 0xF), count};
  }
  void skip(Thrift type, bool element = false) {
    switch (type) {
      case Thrift::stop:
        return;
      case Thrift::yes:
      case Thrift::no:
        if (element) bytes_.byte();
        return;
      case Thrift::i8:
        bytes_.byte();
        return;
      case Thrift::i16:
      case Thrift::i32:
      case Thrift::i64:
        bytes_.varint();
        return;
      case Thrift::real:
        bytes_.take(8);
        return;
      case Thrift::binary:
        bytes_.take(bytes_.varint());
        return;
      case Thrift::list:
      case Thrift::set: {
        const auto [of, count] = list_head();
        ThriftStruct inner(bytes_, depth_ + 1);
        for (std::uint64_t i = 0; i < count; ++i) inner.skip(of, true);
        return;
      }
      case Thrift::map: {
        const std::uint64_t count = bytes_.varint();
        if (count == 0) return;
        check(count <= bytes_.rest().size(), "found a map of {} elements in {} bytes", count,
              bytes_.rest().size());
        const std::uint8_t types = bytes_.byte();
        ThriftStruct inner(bytes_, depth_ + 1);
        for (std::uint64_t i = 0; i < count; ++i) {
          inner.skip(type_of(types >> 4), true);
          inner.skip(type_of(types & 0xF), true);
        }
        return;
      }
      case Thrift::object: {
        ThriftStruct inner(bytes_, depth_ + 1);
        while (inner.next()) {
        }
        return;
      }
    }
  }

  PageBytes& bytes_;
  int depth_ = 0, id_ = 0;
  Thrift type_ = Thrift::stop;
  bool read_ = true;
};

SchemaElement schema_element(ThriftStruct& fields) {
  constexpr std::int64_t kUtf8 = 0, kList = 3, kEnum = 4, kJson = 19;  // converted types
  constexpr int kLogicalString = 1, kLogicalList = 3, kLogicalEnum = 4, kLogicalJson = 12;
  SchemaElement element;
  while (fields.next()) switch (fields.id()) {
      case 1:
        element.type = fields.integer();
        break;
      case 3: {
        const std::int64_t repetition = fields.integer();
        check(repetition >= 0 && repetition <= 2, "found a column of the unknown repetition {}", repetition);
        element.repetition = static_cast<Repetition>(repetition);
        break;
      }
      case 4:
        element.name = fields.binary();
        break;
      case 5:
        element.children = fields.size();
        break;
      case 6: {
        const std::int64_t type = fields.integer();
        element.string |= type == kUtf8 || type == kEnum || type == kJson;
        element.list |= type == kList;
        break;
      }
      case 10:
        for (ThriftStruct type = fields.object(); type.next();) {
          const int id = type.id();
          element.string |= id == kLogicalString || id == kLogicalEnum || id == kLogicalJson;
          element.list |= id == kLogicalList;
        }
        break;
      default:
        break;
    }
  return element;
}

Chunk chunk_of(ThriftStruct& fields) {
  Chunk chunk;
  while (fields.next()) switch (fields.id()) {
      case 1:
        chunk.elsewhere = !fields.binary().empty();
        break;
      case 3:
        for (ThriftStruct data = fields.object(); data.next();) switch (data.id()) {
            case 1:
              chunk.type = data.integer();
              break;
            case 4:
              chunk.codec = static_cast<Codec>(std::min<std::uint64_t>(data.size(), 1000));
              break;
            case 5:
              chunk.values = data.size();
              break;
            case 7:
              chunk.bytes = data.size();
              break;
            case 9:
              chunk.data_page = data.size();
              break;
            case 11:
              chunk.dictionary_page = data.size();
              break;
            default:
              break;
          }
        break;
      case 8:
        chunk.encrypted = true;
        break;
      default:
        break;
    }
  const bool has_dictionary = chunk.dictionary_page > 0 && chunk.dictionary_page < chunk.data_page;
  chunk.begin = has_dictionary ? chunk.dictionary_page : chunk.data_page;
  return chunk;
}

}  // namespace

Footer footer_of(std::string_view text) {
  PageBytes bytes(text);
  Footer footer;
  for (ThriftStruct file(bytes); file.next();) switch (file.id()) {
      case 2:
        file.objects([&](ThriftStruct& element) {
          check(footer.schema.size() < kMaxSchema, "the schema has more than {} elements", kMaxSchema);
          footer.schema.push_back(schema_element(element));
        });
        break;
      case 4:
        file.objects([&](ThriftStruct& fields) {
          RowGroup group;
          while (fields.next()) {
            if (fields.id() == 1)
              fields.objects([&](ThriftStruct& chunk) { group.chunks.push_back(chunk_of(chunk)); });
            else if (fields.id() == 3)
              group.rows = fields.size();
          }
          footer.groups.push_back(std::move(group));
        });
        break;
      default:
        break;
    }
  return footer;
}

PageHeader page_header(PageBytes& bytes) {
  PageHeader page;
  for (ThriftStruct fields(bytes); fields.next();) switch (fields.id()) {
      case 1:
        page.type = fields.integer();
        break;
      case 2:
        page.size = fields.size();
        break;
      case 3:
        page.stored = fields.size();
        break;
      case 4:
        page.crc = static_cast<std::uint32_t>(fields.integer());
        break;
      case 5:
      case 7:
      case 8: {
        const bool v2 = fields.id() == 8;
        for (ThriftStruct data = fields.object(); data.next();) switch (data.id()) {
            case 1:
              page.values = data.size();
              break;
            case 2:
              if (!v2) page.encoding = data.integer();
              break;
            case 3:
              if (!v2 && page.type == kDataPage) page.definition_encoding = data.integer();
              break;
            case 4:
              if (v2)
                page.encoding = data.integer();
              else if (page.type == kDataPage)
                page.repetition_encoding = data.integer();
              break;
            case 5:
              if (v2) page.definition_bytes = data.size();
              break;
            case 6:
              if (v2) page.repetition_bytes = data.size();
              break;
            case 7:
              if (v2) page.compressed = data.boolean();
              break;
            default:
              break;
          }
        break;
      }
      default:
        break;
    }
  return page;
}

}  // namespace thimble::parquet
