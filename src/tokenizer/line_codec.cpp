#include "tokenizer/line_codec.h"

#include <charconv>
#include <string>

#include "base/error.h"
#include "base/interrupt.h"

namespace thimble {

namespace {

constexpr std::size_t kReadBytes = 1 << 18;
constexpr std::size_t kEncodedBytes = 4 << 20;

// Copies of texts that wait to be encoded together.
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
    check(size <= kMaxLineBytes, "a line is longer than {} bytes", kMaxLineBytes);
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
    if (interrupt) interrupt->throw_if_asked();
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
    check(tokenizer.contains(id), "{} is no token id; this vocabulary has {}", id, tokenizer.vocab_size());
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
    if (interrupt) interrupt->throw_if_asked();
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
