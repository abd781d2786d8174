// The metadata of a Parquet file: its footer and the headers of its pages, which are structures of
// Thrift's compact protocol, reduced to what is needed. Sizes are as stored, not checked against
// the file. Errors do not name the file; the caller adds it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/parquet_pages.h"

namespace thimble::parquet {

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
