// A record with its content understood: a text or a conversation, cleaned, or a reason why it is neither.
#pragma once

#include <string>

#include "base/digest.h"
#include "data/chat.h"
#include "data/manifest.h"
#include "data/records.h"

namespace thimble {

struct ReadOptions {
  DataKind kind = DataKind::text;
  DocumentSplit split = DocumentSplit::end_of_text;  // of texts that are not JSON
  std::string text_field = "text";                   // of JSON, unless it is a chat
  bool strip_markdown = false;
};

struct Document {
  std::string text = {};     // kind text
  Conversation turns = {};   // kind chat; up to the last answer, so empty when there is none
  std::size_t cut = 0;       // turns behind the last answer, taken away
  std::string problem = {};  // not empty: why the record is bad, with its file and line
  std::string hint = {};

  std::uint64_t content_bytes() const;
  Digest digest() const;  // of the content; a conversation's depends on who says what
  // There is a text, or an answer.
  bool has_content() const { return !text.empty() || !turns.empty(); }
};

// Takes the record's text away. Never throws for bad content: that is a Document with a problem.
Document read_document(Record& record, const ReadOptions& options);

// What the first record of a source that can be read looks like: a chat in one of its forms, or text.
DataKind detect_kind(const DataSource& source);

}  // namespace thimble
