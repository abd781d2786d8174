// Writes small Parquet files for tests, byte by byte, so that every part can be damaged.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace thimble::parquet_file {

inline std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}
inline std::string zigzag(std::int64_t value) {
  return varint((static_cast<std::uint64_t>(value) << 1) ^ (value < 0 ? ~std::uint64_t{0} : 0));
}
inline std::string u32(std::uint32_t value) {
  std::string out;
  for (int i = 0; i < 4; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

// A structure in Thrift's compact protocol. Fields must be added in the order of their ids.
class Fields {
 public:
  Fields& integer(int id, std::int64_t value) { return add(id, 5, zigzag(value)); }
  Fields& binary(int id, std::string_view text) {
    return add(id, 8, varint(text.size()) + std::string(text));
  }
  Fields& boolean(int id, bool value) { return add(id, value ? 1 : 2, ""); }
  Fields& object(int id, const Fields& fields) { return add(id, 12, fields.bytes()); }
  Fields& list(int id, const std::vector<Fields>& elements) {
    std::string out;
    out += static_cast<char>((elements.size() < 15 ? elements.size() : 15) << 4 | 12);
    if (elements.size() >= 15) out += varint(elements.size());
    for (const Fields& element : elements) out += element.bytes();
    return add(id, 9, out);
  }
  std::string bytes() const { return bytes_ + '\0'; }

 private:
  Fields& add(int id, int type, const std::string& value) {
    bytes_ += static_cast<char>((id - last_) << 4 | type);
    bytes_ += value;
    last_ = id;
    return *this;
  }
  std::string bytes_;
  int last_ = 0;
};

// Codecs and encodings by their numbers in the format.
inline constexpr int kUncompressed = 0, kSnappy = 1, kGzip = 2, kBrotli = 4, kZstd = 6;
inline constexpr int kPlain = 0, kDeltaBinary = 5, kDeltaLength = 6, kDeltaBytes = 7, kRleDictionary = 8;
inline constexpr int kRequired = 0, kOptional = 1, kRepeated = 2;

inline std::string plain(const std::vector<std::string>& strings) {
  std::string out;
  for (const std::string& text : strings) out += u32(static_cast<std::uint32_t>(text.size())) + text;
  return out;
}

// Levels of one bit width as bit-packed groups of eight.
inline std::string packed_levels(const std::vector<unsigned>& levels, unsigned bits) {
  const std::size_t groups = (levels.size() + 7) / 8;
  std::string out = varint(groups << 1 | 1), body(groups * bits, '\0');
  for (std::size_t i = 0; i < levels.size() * bits; ++i)
    if (levels[i / bits] >> (i % bits) & 1) body[i / 8] = static_cast<char>(body[i / 8] | 1 << (i % 8));
  return out + body;
}
// Version 1 pages have the size of the levels before them.
inline std::string sized(const std::string& levels) {
  return u32(static_cast<std::uint32_t>(levels.size())) + levels;
}

// A page: its header, and its body as stored.
struct Page {
  Fields header;
  std::string body;

  std::string bytes() const { return header.bytes() + body; }
};

inline Page data_page(std::size_t values, int encoding, std::size_t size, const std::string& stored) {
  return {Fields()
              .integer(1, 0)
              .integer(2, static_cast<std::int64_t>(size))
              .integer(3, static_cast<std::int64_t>(stored.size()))
              .object(5, Fields()
                             .integer(1, static_cast<std::int64_t>(values))
                             .integer(2, encoding)
                             .integer(3, 3)
                             .integer(4, 3)),
          stored};
}
inline Page data_page(std::size_t values, int encoding, const std::string& body) {
  return data_page(values, encoding, body.size(), body);
}
inline Page dictionary_page(std::size_t values, const std::string& body) {
  const auto size = static_cast<std::int64_t>(body.size());
  return {Fields().integer(1, 2).integer(2, size).integer(3, size).object(
              7, Fields().integer(1, static_cast<std::int64_t>(values)).integer(2, kPlain)),
          body};
}
inline Page data_page2(std::size_t values, int encoding, const std::string& repetitions,
                       const std::string& definitions, const std::string& stored, std::size_t size,
                       bool compressed) {
  const std::string body = repetitions + definitions + stored;
  return {Fields()
              .integer(1, 3)
              .integer(2, static_cast<std::int64_t>(repetitions.size() + definitions.size() + size))
              .integer(3, static_cast<std::int64_t>(body.size()))
              .object(8, Fields()
                             .integer(1, static_cast<std::int64_t>(values))
                             .integer(2, 0)
                             .integer(3, static_cast<std::int64_t>(values))
                             .integer(4, encoding)
                             .integer(5, static_cast<std::int64_t>(definitions.size()))
                             .integer(6, static_cast<std::int64_t>(repetitions.size()))
                             .boolean(7, compressed)),
          body};
}

inline Fields group(std::string_view name, int repetition, int children, bool list = false) {
  Fields fields;
  fields.integer(3, repetition).binary(4, name).integer(5, children);
  return list ? fields.integer(6, 3) : fields;
}
inline Fields strings(std::string_view name, int repetition) {
  return Fields().integer(1, 6).integer(3, repetition).binary(4, name).integer(6, 0);
}

struct ChunkOfPages {
  std::size_t values = 0;
  std::vector<Page> pages = {};
  int codec = kUncompressed;
  bool dictionary = false;  // the first page is one
};
struct GroupOfChunks {
  std::size_t rows = 0;
  std::vector<ChunkOfPages> chunks = {};
};

// `schema`: the columns, without the root.
inline std::string file_of(const std::vector<Fields>& schema, int columns,
                           const std::vector<GroupOfChunks>& groups) {
  std::string file = "PAR1";
  std::vector<Fields> footer_groups;
  std::size_t rows = 0;
  for (const GroupOfChunks& written : groups) {
    std::vector<Fields> chunks;
    for (const ChunkOfPages& chunk : written.chunks) {
      const auto begin = static_cast<std::int64_t>(file.size());
      std::int64_t data = begin;
      for (std::size_t i = 0; i < chunk.pages.size(); ++i) {
        if (i == 1 && chunk.dictionary) data = static_cast<std::int64_t>(file.size());
        file += chunk.pages[i].bytes();
      }
      const auto size = static_cast<std::int64_t>(file.size()) - begin;
      Fields meta;
      meta.integer(1, 6)
          .integer(4, chunk.codec)
          .integer(5, static_cast<std::int64_t>(chunk.values))
          .integer(6, size)
          .integer(7, size)
          .integer(9, data);
      if (chunk.dictionary) meta.integer(11, begin);
      chunks.push_back(Fields().integer(2, begin).object(3, meta));
    }
    rows += written.rows;
    footer_groups.push_back(
        Fields().list(1, chunks).integer(2, 0).integer(3, static_cast<std::int64_t>(written.rows)));
  }
  std::vector<Fields> elements = {group("root", kRequired, columns)};
  elements.insert(elements.end(), schema.begin(), schema.end());
  const std::string footer = Fields()
                                 .integer(1, 1)
                                 .list(2, elements)
                                 .integer(3, static_cast<std::int64_t>(rows))
                                 .list(4, footer_groups)
                                 .bytes();
  return file + footer + u32(static_cast<std::uint32_t>(footer.size())) + "PAR1";
}

// One required column of strings in one row group.
inline std::string text_file(std::size_t rows, std::vector<Page> pages, int codec = kUncompressed,
                             bool dictionary = false) {
  return file_of({strings("text", kRequired)}, 1, {{rows, {{rows, std::move(pages), codec, dictionary}}}});
}

}  // namespace thimble::parquet_file
