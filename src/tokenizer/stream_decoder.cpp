#include "tokenizer/stream_decoder.h"

#include "tokenizer/unicode.h"

namespace thimble {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// How many bytes one U+FFFD stands for at the start of a text that does not start with a whole character, and
// whether more bytes could still make it one. (The "maximal subpart" of the Unicode standard.)
struct Broken {
  std::size_t bytes;
  bool may_grow;
};

Broken broken_start(std::string_view text) {
  auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  const std::size_t length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0) return {1, false};
  if (text.size() == 1) return {1, true};
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return {1, false};
  std::size_t good = 2;
  while (good < text.size() && good < length && (byte(good) & 0xC0) == 0x80) ++good;
  return {good, good == text.size()};
}

}  // namespace

std::string take_text(std::string& bytes, bool all) {
  std::string out;
  std::size_t at = 0;
  while (at < bytes.size()) {
    const Utf8Char c = decode_utf8(bytes.data() + at, bytes.data() + bytes.size());
    if (c.valid) {
      out.append(bytes, at, c.bytes);
      at += c.bytes;
      continue;
    }
    const Broken broken = broken_start(std::string_view(bytes).substr(at));
    if (broken.may_grow && !all) break;
    out += kReplacement;
    at += broken.bytes;
  }
  bytes.erase(0, at);
  return out;
}

std::string StreamDecoder::push(TokenId id) {
  tokenizer_.append_token(id, first_, waiting_);
  if (tokenizer_.token_type(id) != TokenType::control) first_ = false;
  return take_text(waiting_, false);
}

std::string StreamDecoder::finish() {
  return take_text(waiting_, true);
}

}  // namespace thimble
