// A parsed record: a cleaned text or conversation, or the reason why it could not be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/signals.h"
#include "data/manifest.h"
#include "data/records.h"
#include "data/text_files.h"
#include "tokenizer/chat_layout.h"

namespace thimble {

class Json;

// The accepted JSON forms of a conversation:
//
//   [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
//   {"messages": [{"role": .., "content": ..}, ..]}
//   {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]}
//   {"instruction": "Add.", "input": "1 2", "output": "3"}                                (Alpaca)
//
// Whether `json` has the outer shape of one of these forms; its contents may be invalid.
bool looks_like_conversation(const Json& json);

// Throws for unknown roles and missing or invalid contents. The message contains the turn.
Conversation parse_conversation(const Json& json);

// Returns the {"messages": ...} form.
Json conversation_json(const Conversation& conversation);

// Removes the turns after the last assistant turn, because they have no answer to learn from, and
// returns how many were removed. Without an assistant turn all turns are removed.
std::size_t cut_to_last_answer(Conversation& conversation);

// Why the text of this record cannot be read from `field`: names the fields that it has.
std::string fields_problem(const Json& record, std::string_view field);

// The part of a conversation, which ends with an answer, between two shares of its bytes. It is cut
// after the answer that is nearest to a share; a system prompt is repeated in the second part. A
// conversation of one exchange is not cut: its first part is all of it.
Conversation part_of(Conversation turns, const RecordPart& part);
// Whether part_of() cuts the conversation.
bool has_parts(const Conversation& turns);

struct Document {
  std::string text = {};     // kind text
  Conversation turns = {};   // kind chat; ends with the last answer, so empty without one
  std::size_t cut = 0;       // number of turns removed after the last answer
  std::string problem = {};  // not empty: why the record is invalid, with file and line
  std::string hint = {};
  bool divisible = true;  // whether it can be cut in two for validation

  std::uint64_t content_bytes() const;
  Digest digest() const;  // of the content; for conversations the roles are included
  // Whether there is a text, or a conversation with an answer.
  bool has_content() const { return !text.empty() || !turns.empty(); }
};

// Moves the text out of `record`. Invalid content does not throw but sets `problem`.
Document read_document(Record& record, const ReadOptions& options);

// The texts of files as a stream, to train a tokenizer: text files as they are, and the texts of
// JSON records without the JSON syntax, which for conversations are the contents of the turns.
class ContentsStream final : public TextStream {
 public:
  // `kind` chat: text files that begin like JSON are read as conversations too. Without a kind, the
  // first valid record of a JSON file decides.
  ContentsStream(std::vector<std::filesystem::path> files, std::optional<DataKind> kind,
                 TextSourceOptions options, const Interrupt* interrupt = nullptr,
                 std::string text_field = "text");

  std::optional<TextDocument> next() override;

  std::size_t file_count() const override { return files_.size(); }
  std::uint64_t stored_bytes() const override { return stored_bytes_; }
  std::uint64_t stored_bytes_read() const override;
  std::uint64_t text_bytes() const override { return text_bytes_; }
  bool has_conversations() const { return has_conversations_; }  // in the files read so far

 private:
  bool open_next_file();
  std::optional<TextDocument> next_record();

  std::vector<std::filesystem::path> files_;
  std::optional<DataKind> kind_;
  TextSourceOptions options_;
  const Interrupt* interrupt_;
  std::uint64_t stored_bytes_ = 0, finished_bytes_ = 0, text_bytes_ = 0;
  std::size_t next_file_ = 0;
  // The current file: one of the two, or neither between files.
  std::optional<TextSource> text_;
  DataSource source_;
  std::optional<RecordReader> records_;  // of source_
  ReadOptions read_;
  std::string contents_;  // of the current record
  bool has_conversations_ = false;
};

}  // namespace thimble
