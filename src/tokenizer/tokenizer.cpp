#include "tokenizer/tokenizer.h"

#include "base/error.h"
#include "base/parallel.h"

namespace thimble {

std::string_view name_of(TokenizerKind kind) {
  switch (kind) {
    case TokenizerKind::bpe:
      return "bpe";
    case TokenizerKind::sentencepiece:
      return "sentencepiece";
    case TokenizerKind::bytes:
      return "bytes";
  }
  return "";
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::vector<TokenId> ids;
  encode(text, ids, options);
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, DecodeOptions options) const {
  std::string text;
  bool first = true;
  for (const TokenId id : ids) {
    check_id(id);
    const bool control = token_type(id) == TokenType::control;
    if (control && options.keep_special)
      text += token_text(id);
    else
      append_token(id, first, text);
    if (!control) first = false;
  }
  return text;
}

std::vector<std::pair<std::string, TokenId>> Tokenizer::special_tokens() const {
  std::vector<std::pair<std::string, TokenId>> tokens;
  for (TokenId id = 0; id < vocab_size(); ++id)
    if (token_type(id) == TokenType::control) tokens.emplace_back(token_text(id), id);
  return tokens;
}

void Tokenizer::prefer(const SpecialIds& ids) {
  for (const auto member : {&SpecialIds::bos, &SpecialIds::eos, &SpecialIds::unk, &SpecialIds::pad}) {
    if (!(ids.*member)) continue;
    check_id(*(ids.*member));
    // bos ends a text where there is no eos: an eos that is the bos says no more than that (DESIGN 8.1).
    if (member == &SpecialIds::eos && ids.eos == special_.bos && !special_.eos) continue;
    special_.*member = ids.*member;
  }
}

bool Tokenizer::adds_bos() const {
  if (texts_begin_with_bos_) return *texts_begin_with_bos_ && special_.bos.has_value();
  if (!special_.bos) return false;
  // Asked with a token's own text: a vocabulary of notes or bases need not have any letter.
  for (TokenId id = 0; id < vocab_size(); ++id) {
    if (token_type(id) != TokenType::normal && token_type(id) != TokenType::byte) continue;
    std::string text;
    append_token(id, false, text);
    const std::vector<TokenId> ids = encode(text, {.add_special = true});
    if (!text.empty() && !ids.empty()) return ids.front() == *special_.bos;
  }
  return false;
}

void Tokenizer::check_id(TokenId id) const {
  check(contains(id), "{} is no token id; this vocabulary has {}", id, vocab_size());
}

std::vector<std::vector<TokenId>> encode_all(const Tokenizer& tokenizer,
                                             std::span<const std::string_view> texts, EncodeOptions options) {
  constexpr std::int64_t kTextsAtOnce = 16;  // enough that borrowing a scratch costs nothing
  std::vector<std::vector<TokenId>> ids(texts.size());
  parallel_for(static_cast<std::int64_t>(texts.size()), kTextsAtOnce,
               [&](std::int64_t begin, std::int64_t end) {
                 for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
                   tokenizer.encode(texts[i], ids[i], options);
               });
  return ids;
}

std::string bytes_of_token(const Tokenizer& tokenizer, TokenId id) {
  std::string bytes;
  tokenizer.append_token(id, false, bytes);
  return bytes.empty() ? tokenizer.token_text(id) : bytes;
}

std::vector<std::string> special_tokens_for(bool chat) {
  if (!chat) return {"<bos>"};
  return {"<bos>", "<user>", "<assistant>", "<end_turn>", "<system>"};
}

}  // namespace thimble
