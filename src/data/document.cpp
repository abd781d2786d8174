#include "data/document.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "data/markdown.h"

namespace thimble {

namespace {

std::string text_in(const Json& json, const std::string& field) {
  check(json.is_object(), Hint{"a chat is built with --chat"}, "expected an object with the key \"{}\"",
        field);
  const Json* value = json.find(field);
  check(value != nullptr,
        Hint{"`thimble data build --text-field KEY` takes another; chats are read with --chat"},
        "the key \"{}\" is missing", field);
  check(value->is_string(), "expected a text as \"{}\"", field);
  return value->as_string();
}

void read_json(const Record& record, const ReadOptions& options, Document& document) {
  const Json json = parse_json(record.raw, record.file->string(), {.first_line = record.line});
  try {
    if (options.kind == DataKind::text) {
      document.text = text_in(json, options.text_field);
    } else {
      document.turns = parse_conversation(json);
      document.cut = cut_to_last_answer(document.turns);
    }
  } catch (const Error& error) {
    throw Error(fmt::format("{}:{}: {}", record.file->string(), record.line, error.what()),
                Hint{error.hint()}, error.where());
  }
}

}  // namespace

std::uint64_t Document::content_bytes() const {
  std::uint64_t bytes = text.size();
  for (const Turn& turn : turns) bytes += turn.content.size();
  return bytes;
}

Digest Document::digest() const {
  if (turns.empty()) return digest_of(text);
  Digester digester;
  for (const Turn& turn : turns)  // the length keeps "a" + "bc" and "ab" + "c" apart
    digester.add(fmt::format("{} {} {}", name_of(turn.role), turn.content.size(), turn.content));
  return digester.result();
}

Document read_document(Record& record, const ReadOptions& options) {
  Document document;
  try {
    if (record.json)
      read_json(record, options, document);
    else
      document.text = std::move(record.raw);
  } catch (const Error& error) {
    document = {.problem = error.what(), .hint = error.hint()};
    return document;
  }
  if (options.strip_markdown) {
    document.text = strip_markdown(document.text, record.in_code);
    for (Turn& turn : document.turns) turn.content = strip_markdown(turn.content);
  }
  return document;
}

DataKind detect_kind(const DataSource& source) {
  constexpr int kRecordsLookedAt = 100;
  RecordReader reader(source, DocumentSplit::line, false);
  for (int i = 0; i < kRecordsLookedAt; ++i) {
    const auto record = reader.next();
    if (!record || !record->json) break;
    try {
      const Json json = parse_json(record->raw, record->file->string());
      return looks_like_conversation(json) ? DataKind::chat : DataKind::text;
    } catch (const Error&) {  // bad JSON: whoever reads it all will say so
    }
  }
  return DataKind::text;
}

}  // namespace thimble
