// Any bytes at all, read as a file of chats: JSON lines (packed ones, too), one JSON array, or texts. Every record is a
// document or has a problem that is said; a conversation ends with an answer, comes back from its own JSON, and becomes
// tokens that hold its words.
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
  promise(turns.back().role == ChatRole::assistant, "a conversation ends with an answer");
  promise(parse_conversation(conversation_json(turns)) == turns, "a conversation comes back");
  std::size_t words = 0;
  for (const Turn& turn : turns) words += turn.content.size();
  const std::vector<TokenId> ids = layout.conversation(turns);
  promise(ids.size() == words + 2 * turns.size() + layout.start().size(),
          "a token for each byte and two for each turn");
}

void try_record(Record record, ReadOptions options) {
  Record taken = record;
  const Document document = read_document(taken, options);
  promise(document.problem.empty() || !document.has_content(), "a bad record has no content");
  if (!document.turns.empty()) check_conversation(document.turns);
  promise(document.digest() == Document(document).digest(), "a digest depends on the content alone");
  options.strip_markdown = true;
  const Document plain = read_document(record, options);
  promise(plain.content_bytes() <= document.content_bytes(), "Markdown is only taken away");
}

// What the reader itself refuses (a broken archive, zero bytes in a text, what is no array) is an Error, and the end.
template <class Reader>
auto next_of(Reader& reader) -> decltype(reader.next()) {
  try {
    return reader.next();
  } catch (const Error&) {
    return std::nullopt;
  }
}

void try_lines(const DataSource& source, DataKind kind, DocumentSplit split,
               std::optional<std::uint64_t> cut_at) {
  RecordReader reader(source, split, kind == DataKind::chat, cut_at);
  while (auto record = next_of(reader)) try_record(std::move(*record), {.kind = kind, .split = split});
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
  try_lines(source, DataKind::chat, DocumentSplit::line, std::nullopt);
  // What looks like JSON teaches nothing when it is read as a text as well.
  if (!object && !array) try_lines(source, DataKind::text, DocumentSplit::end_of_text, bytes.size() / 2);
  if (array) try_array(bytes);
}

}  // namespace thimble
