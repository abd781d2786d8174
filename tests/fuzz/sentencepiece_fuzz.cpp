// Arbitrary bytes, as a SentencePiece model: libsentencepiece may reject it; models that it accepts
// must work. Every token has a text and a type, ids can be found by their texts, and all kinds of
// text can be encoded.
#include <array>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/utf8.h"
#include "formats/gguf_tokenizer.h"
#include "targets.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

namespace {

constexpr std::array<std::string_view, 4> kTexts = {"", " a  cat ", "\xE4\xB8\xAD\xC3\xA9\xFF\xF0\x9F\x98",
                                                    "<s>the\n</s>\xE2\x96\x81"};

void read_tokens(const Tokenizer& tokenizer) {
  std::string text;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    tokenizer.append_token(id, id == 0, text);
    const auto found = tokenizer.id_of(tokenizer.token_text(id));
    require(!found || tokenizer.token_text(*found) == tokenizer.token_text(id),
            "a token is found by its text");
  }
}

void try_encoding(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TokenId> ids;
  try {
    ids = tokenizer.encode(text, {.trusted = true, .add_special = true});
  } catch (const Error&) {
    return;
  }
  StreamDecoder stream(tokenizer);
  std::string shown;
  for (const TokenId id : ids) {
    require(tokenizer.contains(id), "an id is in the vocabulary");
    shown += stream.push(id);
  }
  shown += stream.finish();
  require(is_utf8(shown), "streamed text is UTF-8");
  tokenizer.decode(ids, {.keep_special = true});
}

// Exports the vocabulary to GGUF and imports it again.
void try_gguf_vocabulary(const Tokenizer& tokenizer) {
  GgufVocabulary vocabulary;
  try {
    vocabulary = gguf_vocabulary_of(tokenizer);
  } catch (const Error&) {  // a kind that llama.cpp does not support
    return;
  }
  const auto size = static_cast<std::size_t>(tokenizer.vocab_size());
  require(
      vocabulary.tokens.size() == size && vocabulary.scores.size() == size && vocabulary.types.size() == size,
      "every token has a text, a score and a type");
  try {
    require(tokenizer_from_gguf(vocabulary)->vocab_size() == tokenizer.vocab_size(),
            "the vocabulary size is unchanged by a round trip");
  } catch (const Error&) {
  }
}

}  // namespace

void fuzz_sentencepiece(FuzzBytes bytes) {
  const std::string model(text_of(bytes));
  sentencepiece_scores(model);
  sentencepiece_adds_prefix(model);
  sentencepiece_normalizes(model);
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    tokenizer = load_sentencepiece(model, "fuzz");
  } catch (const Error&) {
    return;
  }
  require(std::ssize(sentencepiece_scores(model)) == tokenizer->vocab_size(), "every piece has a score");
  read_tokens(*tokenizer);
  try_gguf_vocabulary(*tokenizer);
  for (const std::string_view text : kTexts) try_encoding(*tokenizer, text);
}

}  // namespace thimble
