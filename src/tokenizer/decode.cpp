#include "tokenizer/decode.h"

#include "base/error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/normalize.h"

namespace thimble {

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
      check(!fused, "the decoder has a Replace after Fuse, which thimble does not support");
      if (replace->pattern.regex) prepared.regex = std::make_shared<Regex>(replace->pattern.text);
    }
    if (const auto* s = std::get_if<StripDecoder>(&step)) {
      check(!s->content.empty(), "the decoder has a Strip of nothing; expected one character");
      check(!fused || s->stop == 0,
            "the decoder strips the end of the whole text (Strip after Fuse with stop {}), "
            "which thimble does not support",
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
