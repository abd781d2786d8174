#include "data/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "data/csv.h"
#include "data/document.h"
#include "data/markup.h"
#include "data/messengers.h"
#include "data/parquet.h"
#include "data/text_files.h"
#include "tokenizer/unicode.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

std::string last_ending(const fs::path& file) {
  return lower_case(file.extension().string());
}

// The extension that determines the form: ".jsonl" for "a.jsonl.zst".
std::string ending_of(const fs::path& file) {
  const std::string ending = last_ending(file);
  return ending == ".zst" || ending == ".gz" ? last_ending(file.stem()) : ending;
}

}  // namespace

const FileForm* form_by_ending(const fs::path& file, std::span<const FileForm> forms) {
  const std::string ending = ending_of(file);
  for (const FileForm& form : forms)
    if (std::ranges::count(form.endings, ending) > 0) return &form;
  return nullptr;
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
  TextRecords(const fs::path& file, DocumentSplit split,
              std::unique_ptr<ByteStream> (*open)(const fs::path& file))
      : file_(file), text_({file}, {.split = split, .max_piece_bytes = kMaxTextPieceBytes, .open = open}) {}
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

class CsvRecords final : public FileRecords {
 public:
  CsvRecords(const fs::path& file, char separator) : file_(file), csv_(file, separator) {}
  std::uint64_t stored_bytes_read() const override { return csv_.stored_bytes_read(); }

  std::optional<Record> next() override {
    auto row = csv_.next();
    if (!row) return std::nullopt;
    return Record{.raw = std::move(row->json),
                  .json = true,
                  .file = &file_,
                  .line = row->line,
                  .problem = std::move(row->problem)};
  }

 private:
  const fs::path& file_;
  CsvReader csv_;
};

class ParquetRecords final : public FileRecords {
 public:
  // A text needs one column only.
  ParquetRecords(const fs::path& file, const ReadOptions& options)
      : file_(file), parquet_(file, options.kind == DataKind::text ? options.text_field : "") {}
  std::uint64_t stored_bytes_read() const override { return parquet_.stored_bytes_read(); }

  std::optional<Record> next() override {
    auto row = parquet_.next();
    if (!row) return std::nullopt;
    return Record{.raw = std::move(*row), .json = true, .file = &file_, .line = parquet_.row()};
  }

 private:
  const fs::path& file_;
  ParquetReader parquet_;
};

// The conversations of a messenger's export.
class ExportRecords final : public FileRecords {
 public:
  ExportRecords(const fs::path& file, const ReadOptions& options, std::vector<ChatMessages> chats)
      : file_(file), bytes_(InputFile(file).size()) {
    std::string assistant = options.assistant;
    if (assistant.empty()) {
      Participants people;
      people.add(chats);
      assistant = people.likely_assistant();
    }
    for (const ChatMessages& messages : chats)
      for (DatedConversation& conversation : conversations_of(messages, assistant))
        conversations_.push_back(std::move(conversation));
  }
  std::uint64_t stored_bytes_read() const override {
    return conversations_.empty() ? bytes_ : bytes_ * next_ / conversations_.size();
  }

  std::optional<Record> next() override {
    if (next_ == conversations_.size()) return std::nullopt;
    const DatedConversation& conversation = conversations_[next_++];
    return Record{.raw = conversation_json(conversation.turns).dump(),
                  .json = true,
                  .file = &file_,
                  .line = conversation.line};
  }

 private:
  const fs::path& file_;
  std::uint64_t bytes_;
  std::vector<DatedConversation> conversations_;
  std::size_t next_ = 0;
};

template <std::unique_ptr<ByteStream> (*open)(const fs::path&)>
std::unique_ptr<FileRecords> open_text_records(const fs::path& file, const ReadOptions& options) {
  return std::make_unique<TextRecords>(file, options.split, open);
}
std::unique_ptr<FileRecords> open_lines(const fs::path& file, const ReadOptions&) {
  return std::make_unique<LineRecords>(file);
}
std::unique_ptr<FileRecords> open_array(const fs::path& file, const ReadOptions&) {
  return std::make_unique<ArrayRecords>(file);
}
template <char separator>
std::unique_ptr<FileRecords> open_csv(const fs::path& file, const ReadOptions&) {
  return std::make_unique<CsvRecords>(file, separator);
}
std::unique_ptr<FileRecords> open_parquet(const fs::path& file, const ReadOptions& options) {
  return std::make_unique<ParquetRecords>(file, options);
}
std::unique_ptr<FileRecords> open_whatsapp(const fs::path& file, const ReadOptions& options) {
  return std::make_unique<ExportRecords>(file, options, read_whatsapp_export(file));
}
std::unique_ptr<FileRecords> open_telegram(const fs::path& file, const ReadOptions& options) {
  return std::make_unique<ExportRecords>(file, options, read_telegram_export(file));
}

constexpr std::string_view kLineEndings[] = {".jsonl", ".ndjson"};
constexpr std::string_view kArrayEndings[] = {".json"};
constexpr std::string_view kMarkdownEndings[] = {".md", ".markdown"};
constexpr std::string_view kHtmlEndings[] = {".html", ".htm", ".xhtml"};
constexpr std::string_view kCsvEndings[] = {".csv"};
constexpr std::string_view kTsvEndings[] = {".tsv"};
constexpr std::string_view kParquetEndings[] = {".parquet"};
constexpr FileForm kFileForms[] = {
    {.name = "text",
     .id = 0,
     .endings = {},
     .json = false,
     .open = open_text_records<open_byte_stream>,
     .open_text = open_byte_stream},
    {.name = "JSON lines", .id = 1, .endings = kLineEndings, .json = true, .open = open_lines},
    {.name = "a JSON array", .id = 2, .endings = kArrayEndings, .json = true, .open = open_array},
    {.name = "Markdown",
     .id = 3,
     .endings = kMarkdownEndings,
     .json = false,
     .open = open_text_records<open_markdown>,
     .open_text = open_markdown},
    {.name = "HTML",
     .id = 4,
     .endings = kHtmlEndings,
     .json = false,
     .open = open_text_records<open_html>,
     .open_text = open_html},
    {.name = "CSV", .id = 5, .endings = kCsvEndings, .json = true, .open = open_csv<'\0'>},
    {.name = "TSV", .id = 6, .endings = kTsvEndings, .json = true, .open = open_csv<'\t'>},
    {.name = "Parquet", .id = 7, .endings = kParquetEndings, .json = true, .open = open_parquet},
    {.name = "WhatsApp export",
     .id = 8,
     .endings = {},
     .json = true,
     .open = open_whatsapp,
     .recognize = [](const fs::path& file,
                     const FileForm* by_ending) { return by_ending == nullptr && is_whatsapp_export(file); }},
    {.name = "Telegram export",
     .id = 9,
     .endings = {},
     .json = true,
     .open = open_telegram,
     .recognize =
         [](const fs::path& file, const FileForm* by_ending) {
           return by_ending != nullptr && by_ending->id == 2 && is_telegram_export(file);
         }},
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

const FileForm& form_in(const fs::path& file, bool chat, std::span<const FileForm> forms) {
  const FileForm* by_ending = form_by_ending(file, forms);
  for (const FileForm& form : forms)
    if (form.recognize && form.recognize(file, by_ending)) return form;
  return form_of(file, chat, forms);
}

RecordReader::RecordReader(const DataSource& source, ReadOptions options, std::vector<std::uint64_t> cuts,
                           std::span<const FileForm> forms)
    : files_(source.files), options_(std::move(options)), cuts_(std::move(cuts)), forms_(forms) {}

std::uint64_t RecordReader::stored_bytes_read() const {
  return finished_bytes_ + (records_ ? records_->stored_bytes_read() : 0);
}

bool RecordReader::open_next_file() {
  finished_bytes_ = stored_bytes_read();
  records_.reset();
  if (next_file_ == files_.size()) return false;
  const fs::path& file = files_[next_file_++];
  records_ = form_in(file, options_.kind == DataKind::chat, forms_).open(file, options_);
  return true;
}

// Returns the part of the record before `at`. The part after it goes to waiting_.
Record RecordReader::split_at(Record record, std::size_t at) {
  if (record.json) {
    waiting_ = record;
    const double share = static_cast<double>(at) / static_cast<double>(record.raw.size());
    record.part.end = waiting_->part.begin = share;
    return record;
  }
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
    if (record->json && is_blank(record->raw) && record->problem.empty()) continue;
    const std::uint64_t begin = text_bytes_;
    text_bytes_ += record->raw.size();
    if (next_cut_ == cuts_.size() || cuts_[next_cut_] >= text_bytes_) return record;
    const auto at = static_cast<std::size_t>(cuts_[next_cut_++] - begin);
    return split_at(std::move(*record), at);
  }
}

}  // namespace thimble
