#include "data/records.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "data/document.h"
#include "data/text_files.h"
#include "tokenizer/unicode.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

constexpr double kMaxWeight = 1000;  // maximum number of passes over a source

struct Weighted {
  std::string name;
  double weight;
};

// Splits "FILE:2.5" into name and weight. If a file with the full name exists, it has no weight.
std::optional<Weighted> split_weight(std::string_view input) {
  const auto colon = input.rfind(':');
  if (colon == input.npos || colon == 0 || fs::exists(fs::path(input))) return std::nullopt;
  const auto weight = parse_number<double>(input.substr(colon + 1));
  if (!weight) return std::nullopt;
  check(std::isfinite(*weight) && *weight > 0 && *weight <= kMaxWeight,
        "the weight in '{}' must be above 0 and at most {}", input, kMaxWeight);
  return Weighted{std::string(input.substr(0, colon)), *weight};
}

std::vector<fs::path> matching(const std::string& pattern) {
  glob_t found{};
  std::vector<fs::path> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0)
    for (std::size_t i = 0; i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  std::ranges::sort(paths);
  return paths;
}

std::string last_ending(const fs::path& file) {
  return lower_case(file.extension().string());
}

// The extension that determines the form: ".jsonl" for "a.jsonl.zst".
std::string ending_of(const fs::path& file) {
  const std::string ending = last_ending(file);
  return ending == ".zst" || ending == ".gz" ? last_ending(file.stem()) : ending;
}

const FileForm* form_by_ending(const fs::path& file, std::span<const FileForm> forms) {
  const std::string ending = ending_of(file);
  for (const FileForm& form : forms)
    if (std::ranges::count(form.endings, ending) > 0) return &form;
  return nullptr;
}

void refuse_unsupported(const fs::path& file) {
  if (form_by_ending(file, file_forms())) return;
  const std::string ending = ending_of(file);
  check(ending != ".parquet",
        Hint{fmt::format("convert it first: duckdb -c \"COPY (SELECT * FROM '{}') TO '{}' (FORMAT json)\"",
                         file.string(), fs::path(file).replace_extension(".jsonl").string())},
        "expected text, .jsonl or .json, found a parquet file: {}", file.string());
  for (const std::string_view other : {".bz2", ".xz", ".zip", ".tar", ".7z"})
    check(ending != other, Hint{"unpack it, or recompress it as .zst or .gz"},
          "{} is an archive of an unsupported type", file.string());
}

}  // namespace

DataSource find_source(std::string_view input) {
  DataSource source{.name = std::string(input)};
  if (const auto weighted = split_weight(input)) {
    source.name = weighted->name;
    source.weight = weighted->weight;
    source.weighted = true;
  }
  std::vector<fs::path> paths = {source.name};
  if (!fs::exists(source.name) && source.name.find_first_of("*?[") != std::string::npos) {
    paths = matching(source.name);
    check(!paths.empty(), "no file matches {}", source.name);
  }
  source.files = text_files(paths);
  for (const fs::path& file : source.files) refuse_unsupported(file);
  return source;
}

namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::uint64_t count_lines(std::string_view text) {
  return static_cast<std::uint64_t>(std::ranges::count(text, '\n'));
}

}  // namespace

JsonElements::JsonElements(ByteStream& stream, std::string name, std::size_t max_bytes)
    : stream_(stream), name_(std::move(name)), max_bytes_(max_bytes) {}

void JsonElements::fail_here(std::string_view expected, std::string_view found) const {
  fail("{}:{}: expected {}, found {}", name_, line_, expected, found);
}

bool JsonElements::more(std::size_t at) {
  while (at >= buffer_.size()) {
    check(buffer_.size() - begin_ <= max_bytes_,
          "{}:{}: the element that begins here is longer than {} bytes", name_, line_, max_bytes_);
    if (!reads_.append(stream_, buffer_)) return false;
  }
  return true;
}

char JsonElements::skip_space() {
  for (; more(begin_); ++begin_) {
    const char c = buffer_[begin_];
    if (kSpace.find(c) == kSpace.npos) return c;
    if (c == '\n') ++line_;
  }
  return '\0';
}

std::size_t JsonElements::quoted_end(std::size_t open) {
  for (std::size_t at = open + 1; more(at); ++at) {
    if (buffer_[at] == '"') return at + 1;
    if (buffer_[at] == '\\') ++at;
  }
  return buffer_.size();  // incomplete: the parser reports it
}

std::size_t JsonElements::element_end() {
  std::size_t depth = 0;
  for (std::size_t at = begin_; more(at);) {
    const char c = buffer_[at];
    if (c == '"') {
      at = quoted_end(at);
      if (depth == 0) return at;
      continue;
    }
    const bool opens = c == '{' || c == '[', closes = c == '}' || c == ']';
    if (depth == 0 && !opens && at > begin_ && (closes || c == ',' || kSpace.find(c) != kSpace.npos))
      return at;
    ++at;
    if (opens) ++depth;
    if (closes && depth > 0 && --depth == 0) return at;
  }
  return buffer_.size();
}

std::optional<JsonElements::Element> JsonElements::next() {
  if (ended_) return std::nullopt;
  if (begin_ >= GrowingReads::kMostBytes) {  // rarely, because erasing moves all later bytes
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  if (!opened_) {
    opened_ = true;
    if (more(kByteOrderMark.size() - 1) && buffer_.starts_with(kByteOrderMark))
      begin_ = kByteOrderMark.size();
    array_ = skip_space() == '[';
    if (array_) ++begin_;
  }
  char c = skip_space();
  if (array_) {
    if (c == ']') {
      ++begin_;
      if (skip_space() != '\0') fail_here("the end of the file after the array", "more data");
      ended_ = true;
      return std::nullopt;
    }
    if (c == '\0') fail_here("the array's ']'", "the end of the file");
    if (!first_) {
      if (c != ',') fail_here("',' or ']' in the array", fmt::format("'{}'", c));
      ++begin_;
      c = skip_space();
      if (c == '\0' || c == ']') fail_here("another element after ','", "none");
    }
  } else if (c == '\0') {
    ended_ = true;
    return std::nullopt;
  }
  first_ = false;
  const std::uint64_t line = line_;
  const std::size_t end = element_end();
  const std::string_view text = std::string_view(buffer_).substr(begin_, end - begin_);
  line_ += count_lines(text);
  begin_ = end;
  return Element{text, line};
}

namespace {

constexpr std::size_t kContextBytes = 32;

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == text.npos;
}

}  // namespace

std::string_view last_word(std::string_view text) {
  std::size_t start = text.size();
  while (start > 0 && text.size() - start < kContextBytes && is_ascii_alnum(text[start - 1])) --start;
  return text.substr(start);
}

namespace {

// Reads texts in pieces.
class TextRecords final : public FileRecords {
 public:
  TextRecords(const fs::path& file, DocumentSplit split)
      : file_(file), text_({file}, {.split = split, .max_piece_bytes = kMaxTextPieceBytes}) {}
  std::uint64_t stored_bytes_read() const override { return text_.stored_bytes_read(); }

  std::optional<Record> next() override {
    const auto piece = text_.next();
    if (!piece) return std::nullopt;
    Record record{.raw = std::string(piece->text),
                  .file = &file_,
                  .line = piece->line,
                  .starts = piece->starts,
                  .ends = piece->ends};
    if (!record.starts && record.raw.starts_with(' ')) record.context = context_;
    context_ = record.ends ? std::string_view() : last_word(record.raw);
    record.in_code = !record.starts && in_code_;
    in_code_ = !record.ends && ends_in_code(record.raw, record.in_code);
    return record;
  }

 private:
  const fs::path& file_;
  TextSource text_;
  std::string context_;   // for the next piece
  bool in_code_ = false;  // whether the next piece begins inside a code fence
};

// Reads one JSON value per line.
class LineRecords final : public FileRecords {
 public:
  explicit LineRecords(const fs::path& file)
      : file_(file), text_({file}, {.split = DocumentSplit::line, .max_piece_bytes = kMaxJsonBytes}) {}
  std::uint64_t stored_bytes_read() const override { return text_.stored_bytes_read(); }

  std::optional<Record> next() override {
    const auto line = text_.next();
    if (!line) return std::nullopt;
    check(line->starts && line->ends, "{}:{}: the line is longer than {} bytes", file_.string(), line->line,
          kMaxJsonBytes);
    return Record{.raw = std::string(line->text), .json = true, .file = &file_, .line = line->line};
  }

 private:
  const fs::path& file_;
  TextSource text_;
};

class ArrayRecords final : public FileRecords {
 public:
  explicit ArrayRecords(const fs::path& file)
      : file_(file), stream_(open_byte_stream(file)), elements_(*stream_, file.string(), kMaxJsonBytes) {}
  std::uint64_t stored_bytes_read() const override { return stream_->stored_bytes_read(); }

  std::optional<Record> next() override {
    const auto element = elements_.next();
    if (!element) return std::nullopt;
    return Record{.raw = std::string(element->text), .json = true, .file = &file_, .line = element->line};
  }

 private:
  const fs::path& file_;
  std::unique_ptr<ByteStream> stream_;
  JsonElements elements_;
};

std::unique_ptr<FileRecords> open_text(const fs::path& file, DocumentSplit split) {
  return std::make_unique<TextRecords>(file, split);
}
std::unique_ptr<FileRecords> open_lines(const fs::path& file, DocumentSplit) {
  return std::make_unique<LineRecords>(file);
}
std::unique_ptr<FileRecords> open_array(const fs::path& file, DocumentSplit) {
  return std::make_unique<ArrayRecords>(file);
}

constexpr std::string_view kLineEndings[] = {".jsonl", ".ndjson"};
constexpr std::string_view kArrayEndings[] = {".json"};
constexpr FileForm kFileForms[] = {
    {.name = "text", .id = 0, .endings = {}, .json = false, .open = open_text},
    {.name = "JSON lines", .id = 1, .endings = kLineEndings, .json = true, .open = open_lines},
    {.name = "a JSON array", .id = 2, .endings = kArrayEndings, .json = true, .open = open_array},
};

}  // namespace

std::span<const FileForm> file_forms() {
  return kFileForms;
}

const FileForm& text_form() {
  return kFileForms[0];
}

const FileForm& form_of(const fs::path& file, bool chat, std::span<const FileForm> forms) {
  if (const FileForm* form = form_by_ending(file, forms)) return *form;
  return forms[chat ? 1 : 0];
}

RecordReader::RecordReader(const DataSource& source, DocumentSplit split, bool chat,
                           std::vector<std::uint64_t> cuts, std::span<const FileForm> forms)
    : files_(source.files), split_(split), chat_(chat), cuts_(std::move(cuts)), forms_(forms) {}

std::uint64_t RecordReader::stored_bytes_read() const {
  return finished_bytes_ + (records_ ? records_->stored_bytes_read() : 0);
}

bool RecordReader::open_next_file() {
  finished_bytes_ = stored_bytes_read();
  records_.reset();
  if (next_file_ == files_.size()) return false;
  const fs::path& file = files_[next_file_++];
  records_ = form_of(file, chat_, forms_).open(file, split_);
  return true;
}

// Returns the part of the record before `at`. The part after it goes to waiting_.
Record RecordReader::split_at(Record record, std::size_t at) {
  at = character_boundary(record.raw, at);
  Record tail = record;
  tail.raw.erase(0, at);
  tail.starts = true;
  tail.context.clear();
  tail.in_code = ends_in_code(std::string_view(record.raw).substr(0, at), record.in_code);
  tail.line += static_cast<std::uint64_t>(
      std::count(record.raw.begin(), record.raw.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
  if (at == 0) return tail;
  waiting_ = std::move(tail);
  record.raw.resize(at);
  record.ends = true;
  return record;
}

std::optional<Record> RecordReader::next() {
  if (waiting_) return std::exchange(waiting_, std::nullopt);
  while (true) {
    auto record = records_ ? records_->next() : std::nullopt;
    if (!record) {
      if (!open_next_file()) return std::nullopt;
      continue;
    }
    if (record->json && is_blank(record->raw)) continue;
    const std::uint64_t begin = text_bytes_;
    text_bytes_ += record->raw.size();
    if (next_cut_ == cuts_.size() || cuts_[next_cut_] >= text_bytes_) return record;
    const auto at = static_cast<std::size_t>(cuts_[next_cut_++] - begin);
    return split_at(std::move(*record), at);
  }
}

}  // namespace thimble
