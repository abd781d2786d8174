// Arbitrary bytes, read as a file of chats: JSON lines (also compressed), a JSON array, or texts.
// Every record is a document or has an error message. A conversation ends with an answer, survives
// a round trip through JSON, and encodes to tokens that contain its text.
#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "data/document.h"
#include "memory_file.h"
#include "targets.h"
#include "tokenizer/chat_layout.h"

namespace thimble {

namespace {

class BytesInMemory final : public ByteStream {
 public:
  explicit BytesInMemory(FuzzBytes bytes) : bytes_(bytes) {}
  std::size_t read(std::span<char> buffer) override {
    const std::size_t count = std::min(buffer.size(), bytes_.size());
    std::copy_n(reinterpret_cast<const char*>(bytes_.data()), count, buffer.data());
    bytes_ = bytes_.subspan(count);
    return count;
  }
  std::uint64_t stored_bytes_read() const override { return 0; }

 private:
  FuzzBytes bytes_;
};

void check_conversation(const Conversation& turns) {
  static const auto tokenizer = load_tokenizer("bytes:chat");
  static const ChatLayout layout = ChatLayout::roles(*tokenizer);
  require(turns.back().role == ChatRole::assistant, "a conversation ends with an answer");
  require(parse_conversation(conversation_json(turns)) == turns,
          "a conversation is unchanged by a round trip");
  std::size_t words = 0;
  for (const Turn& turn : turns) words += turn.content.size();
  const std::vector<TokenId> ids = layout.conversation(turns);
  require(ids.size() == words + 2 * turns.size() + layout.start().size(),
          "there is one token per byte and two per turn");
}

void try_record(Record record, ReadOptions options) {
  Record taken = record;
  const Document document = read_document(taken, options);
  require(document.problem.empty() || !document.has_content(), "a bad record has no content");
  if (!document.turns.empty()) check_conversation(document.turns);
  require(document.digest() == Document(document).digest(), "a digest depends only on the content");
  options.strip_markdown = true;
  const Document plain = read_document(record, options);
  require(plain.content_bytes() <= document.content_bytes(), "removing Markdown adds no content");
}

// Errors of the reader itself (a broken archive, NUL bytes, not an array) end the input.
template <class Reader>
auto next_of(Reader& reader) -> decltype(reader.next()) {
  try {
    return reader.next();
  } catch (const Error&) {
    return std::nullopt;
  }
}

void try_lines(const DataSource& source, DataKind kind, DocumentSplit split,
               std::vector<std::uint64_t> cuts) {
  const ReadOptions options{.kind = kind, .split = split};
  RecordReader reader(source, options, std::move(cuts));
  while (auto record = next_of(reader)) try_record(std::move(*record), options);
}

void try_array(FuzzBytes bytes) {
  static const std::filesystem::path name = "fuzz.json";
  BytesInMemory stream(bytes);
  JsonElements elements(stream, name, kMaxJsonBytes);
  while (const auto element = next_of(elements))
    try_record({.raw = std::string(element->text), .json = true, .file = &name, .line = element->line},
               {.kind = DataKind::chat});
}

}  // namespace

void fuzz_chat(FuzzBytes bytes) {
  const MemoryFile file(bytes);
  const DataSource source{.name = "fuzz", .files = {file.path()}};
  const std::string_view text = text_of(bytes);
  const bool object = text.starts_with('{'),
             array = text.starts_with('[') || text.starts_with(kByteOrderMark);
  try_lines(source, DataKind::chat, DocumentSplit::line, {});
  // JSON read as text finds nothing new.
  if (!object && !array) try_lines(source, DataKind::text, DocumentSplit::end_of_text, {bytes.size() / 2});
  if (array) try_array(bytes);
}

}  // namespace thimble
