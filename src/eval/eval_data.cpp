#include "eval/eval_data.h"

#include "base/error.h"
#include "data/batch_encode.h"
#include "data/data_folder.h"
#include "data/document.h"
#include "data/mixture.h"
#include "data/records.h"
#include "data/sources.h"
#include "tokenizer/chat_layout.h"

namespace thimble {

namespace {

Document checked_document(Record& record, const ReadOptions& options) {
  Document document = read_document(record, options);
  if (!document.problem.empty()) fail(Hint{document.hint}, "{}", document.problem);
  return document;
}

// Every document behind a bos. Encoded as `data build` does it, in pieces: one may be of any length.
std::vector<std::int32_t> encode_texts(const DataSource& source, const Tokenizer& tokenizer,
                                       const ProgressOutput& progress, const Interrupt* interrupt) {
  const ReadOptions options;
  const BatchEncoder encoder(tokenizer, options, {});
  Mixture mixture({&source, 1}, options);
  ProgressBar bar(progress, "reading", "bytes", mixture.stored_bytes());
  std::vector<std::int32_t> tokens;
  for (auto batch = mixture.next_batch(); !batch.empty(); batch = mixture.next_batch()) {
    if (interrupt) interrupt->throw_if_asked();
    bar.update(mixture.stored_bytes_read());
    for (MixedRecord& mixed : batch) {  // the encoder would leave bad ones out
      mixed.record.raw = checked_document(mixed.record, options).text;
      mixed.record.json = false;
    }
    for (const EncodedRecord& encoded : encoder.encode(batch, std::vector<bool>(batch.size(), true)))
      for (const std::vector<TokenId>& part : encoded.parts)
        tokens.insert(tokens.end(), part.begin(), part.end());
  }
  return tokens;
}

// All texts of a source, one behind the other.
std::string read_texts(const DataSource& source, const ProgressOutput& progress, const Interrupt* interrupt) {
  const ReadOptions options{.split = DocumentSplit::file};
  Mixture mixture({&source, 1}, options);
  ProgressBar bar(progress, "reading", "bytes", mixture.stored_bytes());
  std::string text;
  for (auto batch = mixture.next_batch(); !batch.empty(); batch = mixture.next_batch()) {
    if (interrupt) interrupt->throw_if_asked();
    bar.update(mixture.stored_bytes_read());
    for (MixedRecord& mixed : batch) text += checked_document(mixed.record, options).text;
  }
  return text;
}

std::vector<Conversation> read_chats(const DataSource& source, std::uint64_t limit) {
  const ReadOptions options{.kind = DataKind::chat};
  RecordReader reader(source, options.split, true);
  std::vector<Conversation> conversations;
  while (limit == 0 || conversations.size() < limit) {
    auto record = reader.next();
    if (!record) break;
    Document document = checked_document(*record, options);
    if (!document.turns.empty()) conversations.push_back(std::move(document.turns));
  }
  check(!conversations.empty(), "{} holds no conversation with an answer", source.name);
  return conversations;
}

std::vector<std::int32_t> encode_chats(const DataSource& source, const Tokenizer& tokenizer) {
  const ChatLayout layout = ChatLayout::roles(tokenizer);
  std::vector<std::int32_t> tokens;
  for (const Conversation& turns : read_chats(source, 0)) {
    const std::vector<TokenId> ids = layout.conversation(turns);
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }
  return tokens;
}

}  // namespace

TokenSet open_eval_set(const std::filesystem::path& path, const Tokenizer& tokenizer,
                       const ProgressOutput& progress, const Interrupt* interrupt) {
  if (is_data_folder(path)) {
    const DataFolder folder = open_data_folder(path);
    check_tokenizer(folder, tokenizer);
    check(!folder.val.empty(), "{} has no validation shards", path.string());
    return open_split(folder, DataSplit::val, TokenMarks::of(tokenizer, folder.kind(), LossOn::assistant));
  }
  const DataSource source = find_source(path.string());
  const DataKind kind = detect_kind(source);
  const TokenMarks marks = TokenMarks::of(tokenizer, kind, LossOn::assistant);
  std::vector<std::int32_t> tokens = kind == DataKind::chat
                                         ? encode_chats(source, tokenizer)
                                         : encode_texts(source, tokenizer, progress, interrupt);
  check(!tokens.empty(), "{} is empty", path.string());
  return {std::move(tokens), marks};
}

std::vector<std::int32_t> read_stream(const std::filesystem::path& path, const Tokenizer& tokenizer,
                                      const ProgressOutput& progress, const Interrupt* interrupt) {
  const auto check_kind = [&](DataKind kind) {
    check(kind == DataKind::text, Hint{"name a text"}, "{} holds conversations", path.string());
  };
  std::vector<std::int32_t> tokens;
  if (is_data_folder(path)) {
    check_kind(open_data_folder(path).kind());
    const TokenSet set = open_eval_set(path, tokenizer, progress, interrupt);
    const std::uint64_t skip = set.at(0) == set.marks().bos ? 1 : 0;
    tokens.resize(set.size() - skip);
    set.copy(skip, tokens);
    return tokens;
  }
  const DataSource source = find_source(path.string());
  check_kind(detect_kind(source));
  std::string all = read_texts(source, progress, interrupt);
  if (all.ends_with('\n')) all.pop_back();
  tokenizer.encode(all, tokens);
  return tokens;
}

std::vector<Conversation> read_conversations(const std::filesystem::path& path, std::uint64_t limit) {
  check(!is_data_folder(path), Hint{"name the chats themselves, as JSON lines"},
        "{} holds tokens: the words of the answers are needed", path.string());
  const DataSource source = find_source(path.string());
  check(detect_kind(source) == DataKind::chat,
        Hint{"each line is one: {\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, ...]}"},
        "{} holds no conversations", path.string());
  return read_chats(source, limit);
}

}  // namespace thimble
