// Reads CSV and TSV files as JSON, one object of strings per row, with the names of the header
// line:
//
//   author,text                      {"author":"Ann","text":"Once, upon \"a\" time"}
//   Ann,"Once, upon ""a"" time"
//
// Quoting is that of RFC 4180: a quoted field may contain separators, line ends and doubled quotes.
// Lines end with LF or CRLF. Empty lines are skipped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/text_files.h"

namespace thimble {

class CsvReader {
 public:
  // `separator` '\0': the first of comma, semicolon and tab that the header line contains. Throws
  // if the header names a column twice.
  explicit CsvReader(const std::filesystem::path& file, char separator = '\0');

  struct Row {
    std::string json = {};
    std::uint64_t line = 1;    // where it begins
    std::string problem = {};  // not empty: why the row is invalid, with file and line
  };
  // nullopt at the end. Throws if a quoted field does not end, because no later row can be found.
  std::optional<Row> next();

  const std::vector<std::string>& columns() const { return columns_; }
  std::uint64_t stored_bytes_read() const { return stream_->stored_bytes_read(); }

 private:
  bool more();  // whether there is a byte at at_; reads more input if needed
  bool read_fields(std::string& problem);
  void read_quoted(std::string& field, std::string& problem);
  void choose_separator();

  std::string name_;
  std::unique_ptr<ByteStream> stream_;
  GrowingReads reads_;
  std::string buffer_;
  std::size_t at_ = 0;
  std::uint64_t line_ = 1;
  char separator_;
  std::vector<std::string> columns_, fields_;
};

}  // namespace thimble
