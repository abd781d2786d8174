#include "data/csv.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace thimble {

namespace {

constexpr std::size_t kMaxRowBytes = std::size_t{64} << 20;

}  // namespace

CsvReader::CsvReader(const std::filesystem::path& file, char separator)
    : name_(file.string()), stream_(open_byte_stream(file)), separator_(separator) {
  while (buffer_.size() < kByteOrderMark.size() && reads_.append(*stream_, buffer_)) {
  }
  const std::string_view reason = not_text(buffer_);
  check(reason.empty(), Hint{"save it as CSV in UTF-8"}, "{} is not a CSV file: {}", name_, reason);
  if (buffer_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
  if (separator_ == '\0') choose_separator();
  std::string problem;
  if (!read_fields(problem)) return;
  check(problem.empty(), "{}", problem);
  columns_ = fields_;
  for (std::size_t i = 0; i < columns_.size(); ++i)
    check(std::find(columns_.begin(), columns_.begin() + static_cast<std::ptrdiff_t>(i), columns_[i]) ==
              columns_.begin() + static_cast<std::ptrdiff_t>(i),
          "{}: the header names the column \"{}\" twice", name_, columns_[i]);
}

void CsvReader::choose_separator() {
  bool quoted = false, semicolon = false, tab = false;
  const std::size_t begin = at_;
  for (separator_ = ','; more(); ++at_) {
    const char c = buffer_[at_];
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if (c == '\n' || c == ',') break;
    semicolon |= c == ';';
    tab |= c == '\t';
    check(at_ - begin <= kMaxRowBytes, "{}: the header is longer than {} bytes", name_, kMaxRowBytes);
  }
  const bool comma = at_ < buffer_.size() && buffer_[at_] == ',';
  if (!comma && (semicolon || tab)) separator_ = semicolon ? ';' : '\t';
  at_ = begin;
}

bool CsvReader::more() {
  return at_ < buffer_.size() || reads_.append(*stream_, buffer_);
}

// Reads the rest of a field after its opening quote.
void CsvReader::read_quoted(std::string& field, std::string& problem) {
  const std::uint64_t line = line_;
  while (true) {
    check(more(), "{}:{}: the quoted field that begins here does not end", name_, line);
    const char c = buffer_[at_++];
    check(field.size() <= kMaxRowBytes, "{}:{}: the quoted field that begins here is longer than {} bytes",
          name_, line, kMaxRowBytes);
    if (c == '\n') ++line_;
    if (c != '"') {
      field += c;
    } else if (more() && buffer_[at_] == '"') {
      field += buffer_[at_++];
    } else {
      break;
    }
  }
  const bool ended = !more() || buffer_[at_] == separator_ || buffer_[at_] == '\n' || buffer_[at_] == '\r';
  if (!ended && problem.empty())
    problem = fmt::format("{}:{}: expected a separator or a line end after a quoted field, found '{}'", name_,
                          line, buffer_[at_]);
}

// Reads one line into fields_; false at the end of the file.
bool CsvReader::read_fields(std::string& problem) {
  constexpr std::size_t kMostRead = 1 << 20;
  if (at_ > kMostRead) {
    buffer_.erase(0, at_);
    at_ = 0;
  }
  if (!more()) return false;
  fields_.assign(1, "");
  std::size_t bytes = 0;
  for (bool begins = true; more(); ++bytes) {
    const char c = buffer_[at_++];
    check(bytes <= kMaxRowBytes, "{}:{}: the row is longer than {} bytes", name_, line_, kMaxRowBytes);
    if (c == '\n') {
      ++line_;
      if (!fields_.back().empty() && fields_.back().back() == '\r') fields_.back().pop_back();
      return true;
    }
    if (c == '"' && begins) {
      read_quoted(fields_.back(), problem);
      bytes += fields_.back().size();
      // Only the CR of the line end may follow, which must not become part of the field.
      if (more() && buffer_[at_] == '\r') ++at_;
    } else if (c == separator_) {
      fields_.emplace_back();
      begins = true;
      continue;
    } else {
      fields_.back() += c;
    }
    begins = false;
  }
  return true;
}

std::optional<CsvReader::Row> CsvReader::next() {
  while (true) {
    Row row{.line = line_};
    if (!read_fields(row.problem)) return std::nullopt;
    if (fields_.size() == 1 && trim(fields_[0]).empty()) continue;
    if (row.problem.empty() && fields_.size() != columns_.size())
      row.problem = fmt::format("{}:{}: expected {} fields as in the header, found {}", name_, row.line,
                                columns_.size(), fields_.size());
    if (!row.problem.empty()) return row;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      row.json += i == 0 ? '{' : ',';
      append_json_string(row.json, columns_[i]);
      row.json += ':';
      append_json_string(row.json, fields_[i]);
    }
    row.json += '}';
    return row;
  }
}

}  // namespace thimble
