#include "tokenizer/normalize.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/unicode.h"

namespace thimble {

namespace {

// ASCII characters never combine with the character before them. Only runs of non-ASCII text are
// normalized, each with the preceding ASCII character, because marks may combine with it.
void append_form(std::string_view text, UnicodeForm form, std::string& out) {
  const char* const end = text.data() + text.size();
  const char* done = text.data();
  auto copy_until = [&](const char* until) {
    out.append(done, until);
    done = until;
  };
  for (const char* p = text.data(); (p = skip_ascii(p, end)) < end;) {
    const char* start = p > done && static_cast<signed char>(p[-1]) >= 0 ? p - 1 : p;
    bool inert = form == UnicodeForm::nfc;
    while (p < end && static_cast<signed char>(*p) < 0) {
      const Utf8Char c = decode_utf8(p, end);
      if (!c.valid) break;
      inert = inert && is_inert_under_nfc(c.code);
      p += c.bytes;
    }
    if (!inert && p > start) {
      copy_until(start);
      append_normalized({start, static_cast<std::size_t>(p - start)}, form, out);
      done = p;
    }
    while (p < end && !decode_utf8(p, end).valid) ++p;  // copied unchanged
  }
  copy_until(end);
}

void append_lowercase(std::string_view text, std::string& out) {
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const Utf8Char c = decode_utf8(p, end);
    if (!c.valid)
      out += *p;
    else if (c.code == 0x130)
      out += "i\xCC\x87";  // the only letter whose lower case has two characters
    else
      append_utf8(out, lower_case(c.code));
    p += c.bytes;
  }
}

bool changes_nothing(const NormalizerStep& step, std::string_view text) {
  if (!std::holds_alternative<UnicodeForm>(step)) return text.empty();
  if (skip_ascii(text.data(), text.data() + text.size()) == text.data() + text.size()) return true;
  if (std::get<UnicodeForm>(step) != UnicodeForm::nfc) return false;
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); (p = skip_ascii(p, end)) < end;) {
    const Utf8Char c = decode_utf8(p, end);
    if (c.valid && !is_inert_under_nfc(c.code)) return false;
    p += c.bytes;
  }
  return true;
}

}  // namespace

std::string replace_all(std::string_view text, const Regex* regex, std::string_view literal,
                        std::string_view content) {
  std::string out;
  std::size_t done = 0;
  auto replace = [&](std::size_t begin, std::size_t end) {
    out.append(text, done, begin - done).append(content);
    done = end;
  };
  if (regex) {
    regex->for_each_match(text, replace);
  } else if (!literal.empty()) {
    for (std::size_t at = 0; (at = text.find(literal, at)) != text.npos; at = done)
      replace(at, at + literal.size());
  }
  out.append(text, done);
  return out;
}

Normalizer::Normalizer(const std::vector<NormalizerStep>& steps) {
  for (const NormalizerStep& step : steps) {
    const auto* replace = std::get_if<Replace>(&step);
    const bool regex = replace && replace->pattern.regex;
    steps_.push_back({step, regex ? std::make_shared<Regex>(replace->pattern.text) : nullptr});
  }
}

void Normalizer::run(const Step& step, std::string_view text, std::string& out) {
  std::visit(ByType{
                 [&](UnicodeForm form) { append_form(text, form, out); },
                 [&](Lowercase) { append_lowercase(text, out); },
                 [&](const Prepend& prepend) { out.append(prepend.text).append(text); },
                 [&](const Replace& replace) {
                   out = replace_all(text, step.regex.get(), replace.pattern.text, replace.content);
                 },
             },
             step.step);
}

std::string_view Normalizer::apply(std::string_view text, std::string& buffer) const {
  std::string_view current = text;
  for (const Step& step : steps_) {
    if (changes_nothing(step.step, current)) continue;
    std::string next;
    next.reserve(current.size() + current.size() / 8);
    run(step, current, next);
    buffer = std::move(next);
    current = buffer;
  }
  return current;
}

namespace {

void strip(const StripDecoder& strip, std::string& text) {
  for (std::uint32_t i = 0; i < strip.start && text.starts_with(strip.content); ++i)
    text.erase(0, strip.content.size());
  for (std::uint32_t i = 0; i < strip.stop && text.ends_with(strip.content); ++i)
    text.erase(text.size() - strip.content.size());
}

}  // namespace

TokenDecoder::TokenDecoder(const std::vector<DecoderStep>& steps) {
  bool fused = false;
  for (const DecoderStep& step : steps) {
    Step prepared{step, nullptr, fused};
    if (std::holds_alternative<FuseDecoder>(step)) fused = true;
    if (const auto* replace = std::get_if<Replace>(&step)) {
      check(!fused, "the decoder has a Replace after Fuse, which is not supported");
      if (replace->pattern.regex) prepared.regex = std::make_shared<Regex>(replace->pattern.text);
    }
    if (const auto* s = std::get_if<StripDecoder>(&step)) {
      check(!s->content.empty(), "the decoder has a Strip with empty content; expected one character");
      check(!fused || s->stop == 0,
            "the decoder strips the end of the text (Strip after Fuse with stop {}), which is not "
            "supported",
            s->stop);
    }
    steps_.push_back(std::move(prepared));
  }
}

void TokenDecoder::append(std::string_view token, bool first, std::string& text) const {
  std::string piece(token);
  for (const Step& step : steps_) {
    if (const auto* replace = std::get_if<Replace>(&step.step)) {
      piece = replace_all(piece, step.regex.get(), replace->pattern.text, replace->content);
    } else if (std::holds_alternative<ByteFallbackDecoder>(step.step)) {
      if (const auto byte = byte_of_token(piece)) piece.assign(1, static_cast<char>(*byte));
    } else if (const auto* s = std::get_if<StripDecoder>(&step.step)) {
      if (!step.first_only || first) strip(*s, piece);
    }
  }
  text += piece;
}

}  // namespace thimble
