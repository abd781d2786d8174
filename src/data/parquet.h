// Reads the strings of a Parquet file as JSON, one object per row, so that rows are treated like
// the lines of a .jsonl file:
//
//   text: string                                   {"text":"Once"}
//   messages: list<struct<role, content>>          {"messages":[{"role":"user","content":"Hi"}]}
//
// One page of each column is in memory at a time. Columns of other types than strings are left out.
// Encrypted files and codecs other than snappy, gzip and zstd are refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace thimble {

class ParquetReader {
 public:
  // If there is a column named `only`, the other columns are not read. Throws for a damaged footer,
  // and if the file has no column of strings.
  explicit ParquetReader(const std::filesystem::path& file, std::string_view only = {});
  ~ParquetReader();

  // The next row as one line of JSON; nullopt at the end. Errors name the file, the row group and
  // the column. Bytes that are not UTF-8 become U+FFFD.
  std::optional<std::string> next();

  std::uint64_t row() const;  // of the last next(), counted from 1
  std::uint64_t rows() const;
  std::uint64_t stored_bytes_read() const;  // for progress

 private:
  class File;
  std::unique_ptr<File> file_;
};

// Whether the file begins as a Parquet file.
bool is_parquet(const std::filesystem::path& file);

}  // namespace thimble
