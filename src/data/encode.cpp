#include "data/encode.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "base/error.h"
#include "base/parallel.h"
#include "base/signals.h"
#include "data/shard.h"
#include "tokenizer/unicode.h"

namespace thimble {

namespace {

constexpr std::size_t kUnitBytes = 1 << 18;  // small enough to occupy all threads

bool is_ascii_letter(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

// Whether no token of the vocabulary crosses a place where safe_cut() cuts.
bool cuts_are_safe(const Tokenizer& tokenizer) {
  std::string text;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    text.clear();
    tokenizer.append_token(id, false, text);
    for (std::size_t i = 1; i + 1 < text.size(); ++i)
      if (text[i] == ' ' && is_ascii_letter(text[i + 1]) && !last_word({text.data(), i}).empty())
        return false;
  }
  return true;
}

}  // namespace

void add_marks(LearnedConversation& chat) {
  for (std::size_t i = 0; i < chat.ids.size(); ++i)
    if (chat.learned[i]) chat.ids[i] |= kLearnedMark;
  if (!chat.ids.empty()) chat.ids[0] |= kDocumentMark;
}

// A stretch of text that one thread encodes.
struct BatchEncoder::Unit {
  std::size_t record = 0;
  std::string_view text, context;  // context: the last word of the previous unit of the same text
  bool starts = false;             // a document starts here
};

std::uint64_t EncodedRecord::tokens() const {
  std::uint64_t count = 0;
  for (const auto& part : parts) count += part.size();
  return count;
}

BatchEncoder::BatchEncoder(const Tokenizer& tokenizer, ReadOptions read, EncodeLimits limits)
    : tokenizer_(tokenizer),
      read_(std::move(read)),
      limits_(limits),
      byte_table_(tokenizer, tokenizer.vocab_size()),
      cuttable_(cuts_are_safe(tokenizer)) {
  if (read_.kind == DataKind::chat)
    layout_.emplace(tokenizer, read_.layout);
  else
    bos_ = bos_of(tokenizer);
}

std::vector<BatchEncoder::Unit> BatchEncoder::cut_into_units(std::span<const MixedRecord> records,
                                                             std::span<const Document> documents) const {
  std::vector<Unit> units;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    std::string_view text = documents[i].text, context = records[i].record.context;
    bool starts = records[i].record.starts;
    while (!text.empty()) {
      std::size_t end = text.size();
      if (cuttable_ && end > kUnitBytes)
        if (const std::size_t cut = safe_cut(text, 0, kUnitBytes)) end = cut;
      units.push_back({i, text.substr(0, end), context, starts});
      context = last_word(text.substr(0, end));
      text.remove_prefix(end);
      starts = false;
    }
  }
  return units;
}

void BatchEncoder::encode_text(const Unit& unit, std::vector<TokenId>& ids, std::uint64_t& bytes) const {
  const bool count_text = tokenizer_.kind() != TokenizerKind::sentencepiece;
  std::vector<TokenId> before;
  if (!unit.context.empty()) {
    tokenizer_.encode(unit.context, before);
    tokenizer_.encode(std::string(unit.context) + std::string(unit.text), ids);
  }
  // If a token crosses the cut, the tokens of the context word are not separable: encode without
  // it.
  const bool separable = !before.empty() && std::ranges::mismatch(before, ids).in1 == before.end();
  if (!separable) {
    ids.clear();
    if (unit.starts) ids.push_back(bos_);
    tokenizer_.encode(unit.text, ids);
    bytes = count_text ? unit.text.size() : byte_table_.total(ids);
    return;
  }
  const auto own = ids.begin() + static_cast<std::ptrdiff_t>(before.size());
  bytes = count_text ? unit.text.size() : byte_table_.total({own - 1, ids.end()});
  ids.erase(ids.begin(), own);
}

void BatchEncoder::encode_chat(const Document& document, const Record& record, EncodedRecord& out) const {
  if (document.turns.empty()) return;  // invalid, or without an answer
  LearnedConversation chat;
  try {
    chat = layout_->learned(document.turns);
  } catch (const Error& error) {
    out.rejected = limits_.skip_rejected;
    if (out.rejected) return;
    fail(Hint{error.hint()}, "{}:{}: {}", record.file ? record.file->string() : "the conversation",
         record.line, error.what());
  }
  const bool count_text = tokenizer_.kind() != TokenizerKind::sentencepiece;
  out.bytes = count_text ? document.content_bytes() : byte_table_.total(chat.ids);
  if (limits_.context > 0 && chat.ids.size() > limits_.context) {
    chat.ids.resize(limits_.context);
    chat.learned.resize(limits_.context);
    // The first token is never a target.
    const bool has_target =
        std::find(chat.learned.begin() + 1, chat.learned.end(), true) != chat.learned.end();
    out.too_long = limits_.skip_long || !has_target;
    out.truncated = !out.too_long;
    out.bytes = out.too_long ? 0 : byte_table_.total(chat.ids);
    if (out.too_long) return;
  }
  if (layout_->text().name != kRolesLayout) add_marks(chat);
  out.parts.push_back(std::move(chat.ids));
}

std::vector<EncodedRecord> BatchEncoder::encode(std::span<MixedRecord> records,
                                                const std::vector<bool>& selected) const {
  std::vector<Document> documents(records.size());
  std::vector<EncodedRecord> encoded(records.size());
  const bool chat = read_.kind == DataKind::chat;
  parallel_items(
      records.size(), [&](std::size_t i) { return records[i].record.raw.size(); },
      [&](std::size_t i) {
        if (!selected[i]) return;
        documents[i] = read_document(records[i].record, read_);
        if (chat) encode_chat(documents[i], records[i].record, encoded[i]);
      });
  if (chat) return encoded;

  const std::vector<Unit> units = cut_into_units(records, documents);
  std::vector<std::vector<TokenId>> ids(units.size());
  std::vector<std::uint64_t> bytes(units.size());
  parallel_items(
      units.size(), [&](std::size_t i) { return units[i].text.size(); },
      [&](std::size_t i) { encode_text(units[i], ids[i], bytes[i]); });
  for (std::size_t i = 0; i < units.size(); ++i) {
    EncodedRecord& out = encoded[units[i].record];
    out.parts.push_back(std::move(ids[i]));
    out.bytes += bytes[i];
  }
  return encoded;
}

namespace {

constexpr std::size_t kReadBytes = 1 << 18;
constexpr std::size_t kEncodedBytes = 4 << 20;

// Collects copies of texts and encodes them together.
class TextBatch {
 public:
  void add(std::string_view text) {
    buffer_ += text;
    ends_.push_back(buffer_.size());
  }
  bool full() const { return buffer_.size() >= kEncodedBytes || ends_.size() >= 1 << 16; }
  std::size_t bytes() const { return buffer_.size(); }

  std::vector<std::vector<TokenId>> encode(const Tokenizer& tokenizer, EncodeOptions options) {
    std::vector<std::string_view> texts;
    std::size_t start = 0;
    for (const std::size_t end : ends_) {
      texts.push_back(std::string_view(buffer_).substr(start, end - start));
      start = end;
    }
    auto ids = encode_all(tokenizer, texts, options);
    buffer_.clear();
    ends_.clear();
    return ids;
  }

 private:
  std::string buffer_;
  std::vector<std::size_t> ends_;
};

}  // namespace

void for_each_line(ByteStream& stream, const std::function<void(std::string_view)>& use) {
  std::string buffer;
  while (true) {
    const std::size_t size = buffer.size();
    check(size <= kMaxLineBytes, "a line is longer than the limit of {} bytes", kMaxLineBytes);
    buffer.resize(size + kReadBytes);
    const std::size_t count = stream.read({buffer.data() + size, kReadBytes});
    buffer.resize(size + count);
    std::size_t start = 0;
    for (std::size_t at = size; (at = buffer.find('\n', at)) != buffer.npos; start = ++at)
      use(std::string_view(buffer).substr(start, at - start));
    buffer.erase(0, start);
    if (count > 0) continue;
    if (!buffer.empty()) use(buffer);
    return;
  }
}

void encode_lines(const Tokenizer& tokenizer, ByteStream& text, EncodeOptions options,
                  const std::function<void(const std::vector<TokenId>&)>& use, const Interrupt* interrupt) {
  TextBatch batch;
  auto flush = [&] {
    if (interrupt) interrupt->throw_if_interrupted();
    for (const std::vector<TokenId>& ids : batch.encode(tokenizer, options)) use(ids);
  };
  for_each_line(text, [&](std::string_view line) {
    batch.add(line);
    if (batch.full()) flush();
  });
  flush();
}

std::vector<TokenId> parse_ids(std::string_view line, const Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  constexpr std::string_view kSeparators = " \t,\r\n[]";
  for (std::size_t at = 0; (at = line.find_first_not_of(kSeparators, at)) != line.npos;) {
    const std::size_t end = std::min(line.find_first_of(kSeparators, at), line.size());
    const std::string_view word = line.substr(at, end - at);
    TokenId id = -1;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    check(error == std::errc() && stop == word.data() + word.size(), "expected token ids, found '{}'",
          word.substr(0, 40));
    check(tokenizer.contains(id), "{} is not a token id; the vocabulary has {} tokens", id,
          tokenizer.vocab_size());
    ids.push_back(id);
    at = end;
  }
  return ids;
}

std::string format_ids(const std::vector<TokenId>& ids) {
  std::string out;
  for (const TokenId id : ids) {
    if (!out.empty()) out += ' ';
    out += std::to_string(id);
  }
  return out;
}

TextMeasure measure_text(const Tokenizer& tokenizer, TextSource& source, const ProgressOutput& progress,
                         const Interrupt* interrupt) {
  ProgressBar bar(progress, "encoding", "bytes", source.stored_bytes());
  TextMeasure measure;
  TextBatch batch;
  auto flush = [&] {
    if (interrupt) interrupt->throw_if_interrupted();
    measure.bytes += batch.bytes();
    for (const std::vector<TokenId>& ids : batch.encode(tokenizer, {})) measure.tokens += ids.size();
    bar.update(source.stored_bytes_read());
  };
  while (const auto document = source.next()) {
    if (document->starts) ++measure.documents;
    batch.add(document->text);
    if (batch.full()) flush();
  }
  flush();
  return measure;
}

}  // namespace thimble
