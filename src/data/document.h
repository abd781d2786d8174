// A record with its content understood: a text or a conversation, cleaned, or a reason why it is neither.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/digest.h"
#include "data/manifest.h"
#include "data/records.h"
#include "tokenizer/chat_layout.h"

namespace thimble {

class Json;

// A conversation, and the JSON forms in which people keep them:
//
//   [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
//   {"messages": [{"role": .., "content": ..}, ..]}
//   {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]}
//   {"instruction": "Add.", "input": "1 2", "output": "3"}                                  (Alpaca)
// Is it in one of those forms, whatever may be wrong inside?
bool looks_like_conversation(const Json& json);

// Unknown roles, and contents that are missing or not text, are errors that say which turn.
Conversation parse_conversation(const Json& json);

// The second of the forms above.
Json conversation_json(const Conversation& conversation);

// Takes away the turns behind the assistant's last: nobody answers them. Says how many went; without an
// assistant those are all.
std::size_t cut_to_last_answer(Conversation& conversation);

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

// Markdown as plain text, line by line: what stays is what a reader reads aloud.
//
//   # A *fine* [book](http://..)   ->   A fine book
//
// Taken away: heading and quote marks, bullets, rules, emphasis, fences and backticks (what they hold stays),
// the addresses of links and images, table borders. Numbers of lists stay: they are text.
// A long text comes in pieces: `in_code` says that this one begins between two fences.
std::string strip_markdown(std::string_view text, bool in_code = false);
bool ends_in_code(std::string_view text, bool in_code = false);

}  // namespace thimble
