#include "data/records.h"

#include <algorithm>

#include "base/error.h"
#include "data/markdown.h"

namespace thimble {

namespace {

constexpr std::size_t kLookedAtBytes = 4096;  // of a text, for signs that it is none
constexpr std::size_t kContextBytes = 32;

bool is_ascii_alnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == text.npos;
}

void check_is_text(std::string_view text, const std::filesystem::path& file) {
  check(text.substr(0, kLookedAtBytes).find('\0') == text.npos,
        Hint{"expected UTF-8 text, .jsonl or .json, plain or as .zst or .gz; convert it first"},
        "{} is not a text: it holds zero bytes", file.string());
}

}  // namespace

std::string_view last_word(std::string_view text) {
  std::size_t start = text.size();
  while (start > 0 && text.size() - start < kContextBytes && is_ascii_alnum(text[start - 1])) --start;
  return text.substr(start);
}

RecordReader::RecordReader(const DataSource& source, DocumentSplit split, bool chat,
                           std::optional<std::uint64_t> cut_at)
    : files_(source.files), split_(split), chat_(chat), cut_at_(cut_at) {}

std::uint64_t RecordReader::stored_bytes_read() const {
  return finished_bytes_ + (text_ ? text_->stored_bytes_read() : stream_ ? stream_->stored_bytes_read() : 0);
}

bool RecordReader::open_next_file() {
  finished_bytes_ = stored_bytes_read();
  text_.reset();
  elements_.reset();
  stream_.reset();
  context_.clear();
  if (next_file_ == files_.size()) return false;
  const std::filesystem::path& file = files_[next_file_++];
  form_ = form_of(file, chat_);
  if (form_ == FileForm::json_array) {
    stream_ = open_byte_stream(file);
    elements_ = std::make_unique<JsonElements>(*stream_, file.string(), kMaxJsonBytes);
  } else {
    const bool lines = form_ == FileForm::json_lines;
    text_ = std::make_unique<TextSource>(
        std::vector{file}, TextSourceOptions{.split = lines ? DocumentSplit::line : split_,
                                             .max_piece_bytes = lines ? kMaxJsonBytes : kMaxTextPieceBytes});
  }
  return true;
}

std::optional<Record> RecordReader::next_text() {
  const auto document = text_->next();
  if (!document) return std::nullopt;
  const std::filesystem::path& file = files_[next_file_ - 1];
  Record record{.raw = std::string(document->text),
                .file = &file,
                .line = document->line,
                .starts = document->starts,
                .ends = document->ends};
  if (form_ == FileForm::json_lines) {
    record.json = true;
    check(record.starts && record.ends, "{}:{}: the line is longer than {} bytes", file.string(), record.line,
          kMaxJsonBytes);
    return record;
  }
  if (record.line == 1 && record.starts) check_is_text(record.raw, file);
  if (!record.starts && record.raw.starts_with(' ')) record.context = context_;
  context_ = record.ends ? std::string_view() : last_word(record.raw);
  record.in_code = !record.starts && in_code_;
  in_code_ = !record.ends && ends_in_code(record.raw, record.in_code);
  return record;
}

std::optional<Record> RecordReader::next_in_file() {
  if (text_) return next_text();
  if (!elements_) return std::nullopt;
  const auto element = elements_->next();
  if (!element) return std::nullopt;
  return Record{.raw = std::string(element->text),
                .json = true,
                .file = &files_[next_file_ - 1],
                .line = element->line};
}

// The part of the record before cut_at_; what lies behind it waits as a document of its own.
std::optional<Record> RecordReader::cut_in_two(Record& record) {
  std::size_t at = *cut_at_ - text_bytes_;
  while (at > 0 && (static_cast<unsigned char>(record.raw[at]) & 0xC0) == 0x80) --at;
  cut_at_.reset();
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
  return std::move(record);
}

std::optional<Record> RecordReader::next() {
  if (waiting_) return std::exchange(waiting_, std::nullopt);
  while (true) {
    auto record = next_in_file();
    if (!record) {
      if (!open_next_file()) return std::nullopt;
      continue;
    }
    if (record->json && is_blank(record->raw)) continue;
    const std::uint64_t end = text_bytes_ + record->raw.size();
    if (cut_at_ && *cut_at_ < end) record = cut_in_two(*record);
    text_bytes_ = end;
    return record;
  }
}

}  // namespace thimble
