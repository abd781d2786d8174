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
    const std::size_t end = std::min(buffer_.find('"', at_), buffer_.size());
    const std::string_view run = std::string_view(buffer_).substr(at_, end - at_);
    check(run.size() <= kMaxRowBytes - field.size(),
          "{}:{}: the quoted field that begins here is longer than {} bytes", name_, line, kMaxRowBytes);
    field += run;
    line_ += static_cast<std::uint64_t>(std::ranges::count(run, '\n'));
    at_ = end;
    if (at_ == buffer_.size()) continue;
    ++at_;
    if (!more() || buffer_[at_] != '"') break;
    field += buffer_[at_++];
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
  const char stops[] = {separator_, '\n'};
  std::size_t bytes = 0;  // before the current field
  for (bool begins = true; more();) {
    std::string& field = fields_.back();
    check(bytes + field.size() <= kMaxRowBytes, "{}:{}: the row is longer than {} bytes", name_, line_,
          kMaxRowBytes);
    const char c = buffer_[at_];
    if (c == '"' && begins) {
      ++at_;
      read_quoted(field, problem);
      // Only the CR of the line end may follow, which must not become part of the field.
      if (more() && buffer_[at_] == '\r') ++at_;
    } else if (c == '\n') {
      ++at_;
      ++line_;
      if (field.ends_with('\r')) field.pop_back();
      return true;
    } else if (c == separator_) {
      ++at_;
      bytes += field.size() + 1;
      fields_.emplace_back();
      begins = true;
      continue;
    } else {
      const std::size_t end =
          std::min(buffer_.find_first_of(std::string_view(stops, sizeof stops), at_), buffer_.size());
      field.append(buffer_, at_, end - at_);
      at_ = end;
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
